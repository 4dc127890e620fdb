"""kill -9 at every step that changes something: the next command says so, and both ways out lead where they should."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leonardo.errors import InputError, LeonardoError
from leonardo.overlay import journal, operations, rebase, tree
from tests.overlay.conftest import EXTRA, RUN, Lab
from tests.overlay.test_rebase import resolve

CHANGING = {"update-ref", "checkout", "symbolic-ref", "reset", "cherry-pick"}
DATE = {"GIT_AUTHOR_DATE": "@1700000000 +0000"}


def killed_before_step(lab: Lab, work: Callable[[Lab], object], step: int) -> bool:
    """Do ``work`` in a process that is killed before its ``step``-th change. Returns whether it came to that.

    A checkout that is killed has written a part of a file and left git's lock.
    """
    child = os.fork()
    if child == 0:
        try:
            _die_at(lab, step)
            work(lab)
        except LeonardoError:
            pass
        except BaseException:  # noqa: BLE001
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def _die_at(lab: Lab, step: int) -> None:
    left = step

    def count(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if name in ("checkout", "reset"):
                (lab.upstream / ".git" / "index.lock").touch()
                if name == "checkout":
                    lab.file(RUN).write_text(lab.file(RUN).read_text()[:40])
                    lab.file(EXTRA).unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)

    run, put, remove, write = tree.Tree.git_bytes, journal._put, journal.remove_journal, journal.write_json

    def git_bytes(self: tree.Tree, *words: str, **options: object) -> bytes:
        if words[0] in CHANGING:
            count(words[0])
        return run(self, *words, **options)

    def wrapped(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            count(function.__name__)
            function(*arguments)

        return call

    tree.Tree.git_bytes = git_bytes
    journal._put, journal.write_json = wrapped(put), wrapped(write)
    journal.remove_journal = wrapped(remove)


def copies(lab: Lab, folder: Path) -> Iterator[Lab]:
    """Copies of a lab without end."""
    number = 0
    while True:
        number += 1
        target = folder / f"copy-{number}"
        shutil.copytree(lab.project, target, symlinks=True)
        yield Lab(target, lab.commits)
        shutil.rmtree(target)


def edits(lab: Lab) -> None:
    lab.insert("step_15 = 15", "more = True")
    lab.file("engine/new.py").write_text("new = 1\n")


OPERATIONS: dict[str, tuple[bool, Callable[[Lab], object], Callable[[Lab], object]]] = {
    "apply": (False, lambda lab: None, lambda lab: lab.run(operations.apply)),
    "unapply": (True, lambda lab: None, lambda lab: lab.run(operations.unapply)),
    "refresh": (True, edits, lambda lab: lab.run(operations.refresh)),
    "new patch": (True, edits, lambda lab: lab.run(operations.new_patch, "run-add-third")),
    "rebase": (True, lambda lab: None, lambda lab: lab.run(rebase.rebase, lab.commits["later"])),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_operation_can_be_finished_and_taken_back(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("GIT_AUTHOR_DATE", DATE["GIT_AUTHOR_DATE"])
    applied, prepare, work = OPERATIONS[name]
    if not applied:
        lab.run(operations.unapply)
    prepare(lab)
    before = lab.state()
    fresh = copies(lab, tmp_path)
    whole = next(fresh)
    work(whole)
    after = whole.state()
    assert after != before
    for step in range(1, 100):
        hit = next(fresh)
        if not killed_before_step(hit, work, step):
            break
        begun = (hit.upstream / ".git" / "leonardo" / "journal.json").exists()
        if not begun:
            assert hit.state() | {"lock": False} in (before, after)
            continue
        with pytest.raises(
            InputError, match=r"is half done. Go on: make continue-patches; go back: make abort-patches"
        ):
            hit.run(operations.apply)
        other = next(copies(hit, tmp_path / "other"))
        hit.run(rebase.go_on)
        assert hit.state() == after, f"{name} killed before change {step}, continued"
        other.back()
        assert other.state() == before, f"{name} killed before change {step}, aborted"
        shutil.rmtree(other.project)
    assert step > 4


def test_rebase_killed_on_its_way_into_a_conflict(lab: Lab, tmp_path: Path) -> None:
    before = lab.state()
    fresh = copies(lab, tmp_path)

    def work(lab: Lab) -> object:
        return lab.run(rebase.rebase, lab.commits["clash"])

    def finish(lab: Lab) -> dict[str, object]:
        resolve(lab)
        lab.run(rebase.go_on)
        return lab.state()

    whole = next(fresh)
    with pytest.raises(InputError):
        work(whole)
    after = finish(whole)
    for step in range(1, 100):
        hit = next(fresh)
        if not killed_before_step(hit, work, step):
            break
        if not (hit.upstream / ".git" / "leonardo" / "journal.json").exists():
            assert hit.state() == before
            continue
        other = next(copies(hit, tmp_path / "other"))
        with pytest.raises(InputError, match=r"0002-run-add-second.patch is in conflict with upstream's change"):
            hit.run(rebase.go_on)
        assert finish(hit) == after
        other.back()
        assert other.state() == before
        shutil.rmtree(other.project)
    assert step > 3


def test_rebase_killed_on_its_way_out_of_a_conflict(lab: Lab, tmp_path: Path) -> None:
    before = lab.state()
    with pytest.raises(InputError):
        lab.run(rebase.rebase, lab.commits["clash"])
    resolve(lab)
    fresh = copies(lab, tmp_path)
    whole = next(fresh)
    whole.run(rebase.go_on)
    after = whole.state()
    for step in range(1, 100):
        hit = next(fresh)
        if not killed_before_step(hit, lambda lab: lab.run(rebase.go_on), step):
            break
        other = next(copies(hit, tmp_path / "other"))
        hit.run(rebase.go_on)
        assert hit.state() == after
        if (other.upstream / ".git" / "leonardo" / "journal.json").exists():
            other.back()
            assert other.state() == before
        shutil.rmtree(other.project)
    assert step > 6


def test_abort_that_is_killed_can_be_repeated(lab: Lab, tmp_path: Path) -> None:
    before = lab.state()
    with pytest.raises(InputError):
        lab.run(rebase.rebase, lab.commits["clash"])
    fresh = copies(lab, tmp_path)
    for step in range(1, 100):
        hit = next(fresh)
        if not killed_before_step(hit, Lab.back, step):
            break
        hit.back()
        assert hit.state() == before
    assert step > 2


def test_edits_made_after_the_kill_are_kept(lab: Lab) -> None:
    lab.run(operations.unapply)
    for step in range(1, 20):
        if killed_before_step(lab, OPERATIONS["apply"][2], step) and journal_of(lab).exists():
            break
    lab.file(RUN).write_text("a person's work\n")
    told = lab.run(rebase.go_on)
    kept = lab.git("for-each-ref", "--format=%(refname)", "refs/leonardo/rescued")
    assert kept and kept in told[0]
    assert lab.git("show", f"{kept}:{RUN}") == "a person's work"
    assert "first = True" in lab.file(RUN).read_text()


def test_stack_file_edited_after_the_kill_is_kept(lab: Lab) -> None:
    edits(lab)
    assert killed_before_step(lab, OPERATIONS["refresh"][2], 2)  # the journal is written, nothing else
    page = lab.project / "PATCHES.md"
    page.write_text("a person's work\n")
    (note,) = (line for line in lab.run(rebase.go_on) if "was edited meanwhile" in line)
    assert Path(note.rpartition(" ")[2]).read_text() == "a person's work\n"
    assert "more" not in page.read_text() and "0002-run-add-second" in page.read_text()


def journal_of(lab: Lab) -> Path:
    """Where the journal is."""
    return lab.upstream / ".git" / "leonardo" / "journal.json"


def test_two_commands_at_once_take_turns(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_PATIENCE", 0.2)
    with journal.at_work(lab.upstream), pytest.raises(LeonardoError, match="another patches command"):
        lab.run(operations.apply)
    assert lab.run(operations.apply) == ["2 patches are applied already"]


def test_git_that_outlives_its_killed_command_is_waited_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = lab.project / "begun"
    child = os.fork()
    if child == 0:
        with journal.at_work(lab.upstream) as held:
            held.git("-c", f"alias.nap=!touch {begun}; exec sleep 1.5", "nap")
        os._exit(0)
    while not begun.exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    monkeypatch.setattr(journal, "_PATIENCE", 0.1)
    with pytest.raises(LeonardoError, match="another patches command"):
        lab.run(operations.apply)
    monkeypatch.setattr(journal, "_PATIENCE", 10.0)
    assert lab.run(operations.apply) == ["2 patches are applied already"]
