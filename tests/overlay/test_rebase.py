"""Carrying the stack to another commit of upstream: clean, in conflict, on and back."""

import pytest

from leonardo.errors import InputError
from leonardo.overlay import operations
from leonardo.overlay.check import check
from leonardo.overlay.entries import NO_FILE
from leonardo.overlay.rebase import go_on, rebase
from leonardo.overlay.tree import Tree
from tests.overlay.conftest import EXTRA, RUN, Lab

SECOND = "0002-run-add-second.patch"


def sound_on(lab: Lab, commit: str) -> None:
    """The stack is refreshed, applied on ``commit``, and sound."""
    assert lab.stack.lock.commit == commit
    assert lab.git("rev-parse", "--abbrev-ref", "HEAD") == f"leonardo/{commit[:8]}"
    assert lab.state()["changes"] == [] and lab.state()["journal"] is None
    report = check(lab.stack, lab.project, Tree(lab.upstream))
    assert report.findings == ()
    assert lab.run(operations.apply) == ["2 patches are applied already"]


@pytest.mark.parametrize("applied", [True, False])
def test_clean_rebase_refreshes_stack_and_lock(lab: Lab, applied: bool) -> None:
    if not applied:
        lab.run(operations.unapply)
    onto = lab.commits["later"]
    told = lab.run(rebase, onto[:10])
    assert f"2 patches are on {onto[:8]}" in told[-1] and f"160000,{onto},upstream" in told[-1]
    sound_on(lab, onto)
    assert lab.stack.patches[0].changes[0].inserted == {10: "first = True"}
    assert lab.stack.lock.files[EXTRA] == NO_FILE
    assert "step_5 = 5\nfirst = True\nstep_6 = 6\n" in lab.file(RUN).read_text()


def test_rebase_there_and_back_gives_the_same_files(lab: Lab) -> None:
    before = lab.state()
    lab.run(rebase, lab.commits["later"])
    lab.run(rebase, lab.commits["pin"])
    assert lab.state() == before


def test_rebase_to_an_older_commit(lab: Lab) -> None:
    lab.run(rebase, lab.commits["first"])
    sound_on(lab, lab.commits["first"])


def test_rebase_follows_a_renamed_file(lab: Lab) -> None:
    lab.run(rebase, lab.commits["renamed"])
    sound_on(lab, lab.commits["renamed"])
    assert "engine/moved.py" in lab.stack.lock.files and RUN not in lab.stack.lock.files


def test_conflict_names_patch_file_and_upstreams_change(lab: Lab) -> None:
    files = lab.state()["files"]
    with pytest.raises(InputError) as caught:
        lab.run(rebase, lab.commits["clash"])
    assert all(word in str(caught.value) for word in (SECOND, RUN, "upstream: clash", lab.commits["clash"][:7]))
    assert lab.state()["files"] == files  # the stack's files wait for the end
    assert "<<<<<<< " in lab.file(RUN).read_text()
    with pytest.raises(InputError, match=f"rebase-patches waits: {SECOND} is in conflict.*continue-patches.*abort-pat"):
        lab.run(operations.apply)
    with pytest.raises(InputError, match="still has conflict marks"):
        lab.run(go_on)


def resolve(lab: Lab) -> None:
    """What a person does: keep upstream's line, put ours after it."""
    lines = lab.file(RUN).read_text().splitlines()
    ours = next(line for line in lines if "announce_pause" in line)
    start, end = (next(i for i, line in enumerate(lines) if line.startswith(mark)) for mark in ("<<<<<<<", ">>>>>>>"))
    lines[start : end + 1] = ["step_10 = 'ten'", ours]
    lab.file(RUN).write_text("".join(f"{line}\n" for line in lines))


def test_resolved_conflict_goes_on_to_the_end(lab: Lab) -> None:
    with pytest.raises(InputError):
        lab.run(rebase, lab.commits["clash"])
    resolve(lab)
    lab.run(go_on)
    sound_on(lab, lab.commits["clash"])
    assert lab.run(go_on) == ["nothing is half done"]


def test_resolution_that_changes_upstream_is_refused(lab: Lab) -> None:
    with pytest.raises(InputError):
        lab.run(rebase, lab.commits["clash"])
    resolve(lab)
    lab.file(RUN).write_text(lab.file(RUN).read_text().replace("step_10 = 'ten'\n", "step_10 = 10\n"))
    with pytest.raises(InputError, match=r"line 11 of engine/run.py is changed or removed"):
        lab.run(go_on)
    lab.file(RUN).write_text(lab.file(RUN).read_text().replace("step_10 = 10\n", "step_10 = 'ten'\n"))
    lab.run(go_on)
    sound_on(lab, lab.commits["clash"])


def test_abort_brings_everything_back_and_keeps_the_work(lab: Lab) -> None:
    before = lab.state()
    with pytest.raises(InputError):
        lab.run(rebase, lab.commits["clash"])
    resolve(lab)
    found = lab.file(RUN).read_text()
    told = lab.back()
    assert lab.state() == before
    kept = lab.git("for-each-ref", "--format=%(refname)", "refs/leonardo/rescued")
    assert kept and kept in told[0]
    assert lab.git("show", f"{kept}:{RUN}") + "\n" == found


def test_abort_of_an_unapplied_stack_leaves_it_unapplied(pristine: Lab) -> None:
    before = pristine.state()
    with pytest.raises(InputError):
        pristine.run(rebase, pristine.commits["clash"])
    pristine.back()
    assert pristine.state() == before


def test_patch_that_upstream_took_is_named(lab: Lab) -> None:
    before = lab.state()
    with pytest.raises(InputError, match=r"0001-run-add-first.patch changes nothing there: upstream has it"):
        lab.run(rebase, lab.commits["taken"])
    assert lab.state() == before


def test_rebase_refuses_edits_and_unknown_commits(lab: Lab) -> None:
    with pytest.raises(InputError, match="has no commit nowhere"):
        lab.run(rebase, "nowhere")
    assert lab.run(rebase, lab.commits["pin"]) == [f"the stack is on {lab.commits['pin'][:8]} already"]
    lab.insert("step_1 = 1", "edited = 1")
    with pytest.raises(InputError, match="rebase would lose them"):
        lab.run(rebase, lab.commits["later"])
