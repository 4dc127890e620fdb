"""Apply, unapply, diff, refresh and new patch on a small upstream."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from leonardo.errors import InputError
from leonardo.overlay import operations
from leonardo.overlay.check import check
from leonardo.overlay.tree import Tree
from tests.overlay.conftest import EXTRA, PARTS, RUN, Lab, fill_in, git

FIRST = "0001-run-add-first.patch"
SECOND = "0002-run-add-second.patch"


def test_apply_makes_branch_tags_and_a_commit_a_patch(pristine: Lab) -> None:
    told = pristine.run(operations.apply)
    pin = pristine.commits["pin"]
    assert told == [f"2 patches are on branch leonardo/{pin[:8]}"]
    assert pristine.git("rev-parse", "--abbrev-ref", "HEAD") == f"leonardo/{pin[:8]}"
    assert pristine.git("log", "--format=%s", f"{pin}..HEAD").splitlines() == ["run: add second", "run: add first"]
    assert pristine.git("rev-parse", f"tmax-upstream-{pin[:8]}") == pin
    assert pristine.git("rev-parse", f"leonardo-{pin[:8]}-{pristine.stack.digest[:8]}") == pristine.git(
        "rev-parse", "HEAD"
    )
    assert pristine.file(EXTRA).read_text() == "added = 1\n"
    assert "step_5 = 5\nfirst = True\nstep_6 = 6\n" in pristine.file(RUN).read_text()


def test_apply_again_changes_nothing(lab: Lab) -> None:
    before = lab.state()
    assert lab.run(operations.apply) == ["2 patches are applied already"]
    assert lab.state() == before


def test_apply_and_unapply_are_each_others_inverse(lab: Lab) -> None:
    applied = lab.state()
    lab.run(operations.unapply)
    assert lab.state()["refs"] == {}
    assert lab.git("rev-parse", "HEAD") == lab.commits["pin"]
    assert not lab.file(EXTRA).exists()
    assert lab.run(operations.unapply) == ["the patches are not applied"]
    lab.run(operations.apply)
    assert lab.state() == applied


def test_apply_refuses_a_tree_that_is_not_pristine(pristine: Lab) -> None:
    pristine.file(PARTS).write_text("edited\n")
    pristine.file("note.txt").write_text("mine\n")
    before = pristine.state()
    with pytest.raises(InputError, match=r"edits \(engine/parts.py, note.txt\): apply would lose them"):
        pristine.run(operations.apply)
    assert pristine.state() == before


def test_apply_refuses_another_commit_of_upstream(pristine: Lab) -> None:
    pristine.git("checkout", "-q", pristine.commits["first"])
    with pytest.raises(InputError, match="not on the pinned commit"):
        pristine.run(operations.apply)


def test_unapply_refuses_to_lose_edits_and_commits(lab: Lab) -> None:
    lab.insert("step_1 = 1", "edited = 1")
    with pytest.raises(InputError, match="unapply would lose them"):
        lab.run(operations.unapply)
    git(lab.upstream, "commit", "-q", "-a", "-m", "mine")
    with pytest.raises(InputError, match="commits of its own"):
        lab.run(operations.unapply)


def test_stack_that_was_changed_elsewhere_is_applied_over_the_old_one(lab: Lab) -> None:
    patch = lab.project / "patches" / SECOND
    patch.write_text(patch.read_text().replace("a test needs it", "another reason"))
    lab.run(operations.apply)
    assert "another reason" in lab.git("log", "-1", "--format=%B")
    assert len([ref for ref in lab.state()["refs"] if "tags/leonardo-" in ref]) == 1


def test_files_follow_a_stack_with_other_content(lab: Lab) -> None:
    older = {path: path.read_bytes() for path in (lab.project / "patches").iterdir()}
    page = (lab.project / "PATCHES.md").read_bytes()
    lab.insert("step_15 = 15", "more = True")
    lab.run(operations.refresh)
    for path, data in {**older, lab.project / "PATCHES.md": page}.items():
        path.write_bytes(data)  # as a checkout of the project's older commit does
    lab.run(operations.apply)
    assert "more = True" not in lab.file(RUN).read_text() and lab.state()["changes"] == []


def test_no_checkout_is_one_clear_error(lab: Lab) -> None:
    shutil.rmtree(lab.upstream)
    lab.upstream.mkdir()
    git(lab.project, "init", "-q")  # the project's own repository is not upstream's
    with pytest.raises(InputError, match="holds no checkout of upstream"):
        lab.run(operations.apply)


def test_apply_does_not_depend_on_the_callers_git(pristine: Lab, tmp_path: Path) -> None:
    """A commit hook of the project sets GIT_DIR and GIT_INDEX_FILE; a person may have odd settings."""
    git(pristine.project, "init", "-q")
    config = tmp_path / "gitconfig"
    config.write_text(
        "[core]\n autocrlf = true\n[diff]\n noprefix = true\n algorithm = patience\n context = 7\n"
        "[apply]\n whitespace = error\n[commit]\n gpgSign = true\n[format]\n signOff = true\n attach = true\n"
        " numbered = true\n subjectPrefix = X\n to = a@b\n[color]\n ui = always\n[merge]\n conflictStyle = diff3\n"
    )
    odd = {"GIT_CONFIG_GLOBAL": str(config), "GIT_DIR": str(pristine.project / ".git"), "GIT_INDEX_FILE": "nowhere"}
    for command in ("apply", "check"):
        words = [sys.executable, "-m", "leonardo.cli", "patches", command, "--project", str(pristine.project)]
        words += ["--out", str(tmp_path / "out")] if command == "check" else []
        done = subprocess.run(words, env=os.environ | odd, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert pristine.state()["changes"] == []


def test_refresh_writes_edits_back_to_the_last_patch(lab: Lab) -> None:
    lab.insert("step_15 = 15", "more = True")
    lab.file("engine/new.py").write_text("new = 1\n")
    assert lab.run(operations.refresh) == [f"the edits are in {SECOND}"]
    patch = lab.stack.patches[1]
    assert patch.header["Touches"] == f"{EXTRA} engine/new.py {RUN}"
    assert "more = True" in patch.changes[2].inserted.values()
    assert lab.state()["changes"] == []
    assert check(lab.stack, lab.project, Tree(lab.upstream)).findings == ()


def test_refresh_writes_edits_back_to_an_earlier_patch(lab: Lab) -> None:
    content = lab.file(RUN).read_text().replace("first = True\n", "first = True\nfirst_too = True\n")
    lab.file(RUN).write_text(content)
    assert lab.run(operations.refresh, "1") == [f"the edits are in {FIRST}"]
    first, second = lab.stack.patches
    assert list(first.changes[0].inserted.values()) == ["first = True", "first_too = True"]
    assert second.changes[1].inserted.keys() == {13}
    assert lab.file(RUN).read_text() == content
    assert check(lab.stack, lab.project, Tree(lab.upstream)).findings == ()


def test_refresh_may_take_lines_of_the_patch_itself_away(lab: Lab) -> None:
    lab.file(RUN).write_text(lab.file(RUN).read_text().replace("first = True\n", "first = 2\n"))
    lab.run(operations.refresh, "0001-run-add-first")
    assert list(lab.stack.patches[0].changes[0].inserted.values()) == ["first = 2"]


def test_refresh_takes_commits_that_a_person_made(lab: Lab) -> None:
    lab.insert("step_15 = 15", "more = True")
    git(lab.upstream, "commit", "-q", "-a", "-m", "mine")
    lab.run(operations.refresh)
    assert "more = True" in lab.stack.patches[1].changes[1].inserted.values()
    assert len(lab.git("log", "--format=%s", f"{lab.commits['pin']}..HEAD").splitlines()) == 2


@pytest.mark.parametrize("patch", ["1", "2"])
def test_refresh_refuses_to_change_a_line_of_upstream(lab: Lab, patch: str) -> None:
    lab.file(RUN).write_text(lab.file(RUN).read_text().replace("step_12 = 12\n", "step_12 = 13\n"))
    before = lab.state()
    with pytest.raises(InputError, match=r"line 1\d of engine/run.py is changed or removed. .*overrides its effect"):
        lab.run(operations.refresh, patch)
    assert lab.state() == before


def test_refresh_refuses_to_remove_a_file_or_change_its_mode(lab: Lab) -> None:
    lab.file(PARTS).chmod(lab.file(PARTS).stat().st_mode | stat.S_IXUSR)
    with pytest.raises(InputError, match=r"the mode of engine/parts.py changes"):
        lab.run(operations.refresh)
    lab.file(PARTS).unlink()
    with pytest.raises(InputError, match=r"engine/parts.py is deleted"):
        lab.run(operations.refresh)


def test_refresh_refuses_what_is_not_text_and_links(lab: Lab) -> None:
    lab.file("engine/data.bin").write_bytes(b"\0\1\2")
    with pytest.raises(InputError, match=r"engine/data.bin is not text"):
        lab.run(operations.refresh)
    lab.file("engine/data.bin").unlink()
    lab.file("engine/link").symlink_to("run.py")
    with pytest.raises(InputError, match="engine/link is no plain file"):
        lab.run(operations.refresh)


def test_refresh_names_the_later_patch_that_an_edit_rests_on(lab: Lab) -> None:
    lab.insert("from leonardo.hooks.weights import announce_pause as second", "third = second")
    before = lab.state()
    with pytest.raises(InputError, match="rests on lines of a later patch than 0001"):
        lab.run(operations.refresh, "1")
    assert lab.state() == before


def test_new_patch_takes_the_edits(lab: Lab) -> None:
    with pytest.raises(InputError, match="no edits to make a patch of"):
        lab.run(operations.new_patch, "parts-add-third")
    lab.insert("def part():", "    # third", PARTS)
    with pytest.raises(InputError, match="no name for a patch"):
        lab.run(operations.new_patch, "Third Patch")
    lab.run(operations.new_patch, "parts-add-third")
    name = "0003-parts-add-third.patch"
    assert lab.stack.names == (FIRST, SECOND, name)
    findings = check(lab.stack, lab.project).findings
    assert {finding.kind for finding in findings} == {"missing header field", "missing test"}
    fill_in(lab.project / "patches" / name, "the third")
    lab.run(operations.refresh)
    assert check(lab.stack, lab.project, Tree(lab.upstream)).findings == ()


def test_header_edited_by_hand_is_kept_and_shown_on_the_page(lab: Lab) -> None:
    patch = lab.project / "patches" / FIRST
    patch.write_text(patch.read_text().replace("a test needs it", "for a better reason"))
    lab.run(operations.refresh)
    assert "for a better reason" in patch.read_text()
    assert "- Why: for a better reason\n" in (lab.project / "PATCHES.md").read_text()


def test_diff_shows_the_stack_with_edits_or_one_patch(lab: Lab) -> None:
    lab.insert("step_15 = 15", "more = True")
    with_tree = Tree(lab.upstream)
    whole = operations.diff(with_tree, lab.stack, context=1)
    assert all(line in whole for line in ("+first = True", "+more = True", "+added = 1", " step_6 = 6"))
    one = operations.diff(with_tree, lab.stack, "1", context=0)
    assert [line for line in one.splitlines() if line.startswith("+") and "+++" not in line] == ["+first = True"]
    with pytest.raises(InputError, match="no patch is called 7"):
        operations.diff(with_tree, lab.stack, "7")


def test_diff_of_a_stack_that_is_not_applied(pristine: Lab) -> None:
    assert "+first = True" in operations.diff(Tree(pristine.upstream), pristine.stack)


@pytest.mark.parametrize("tool", ["git", "patch", "quilt"])
def test_other_tools_apply_the_files_to_the_same_tree(pristine: Lab, tool: str) -> None:
    if not shutil.which(tool):
        pytest.skip(f"{tool} is not installed")
    patches = pristine.project / "patches"
    for name in pristine.stack.names if tool != "quilt" else ():
        words = {"git": ["git", "apply", "--unidiff-zero"], "patch": ["patch", "-p1", "-s", "-F0", "-i"]}[tool]
        subprocess.run([*words, str(patches / name)], cwd=pristine.upstream, check=True, capture_output=True)
    if tool == "quilt":
        variables = os.environ | {"QUILT_PATCHES": str(patches), "QUILT_PC": str(pristine.project / "pc")}
        subprocess.run(["quilt", "push", "-a"], cwd=pristine.upstream, env=variables, check=True, capture_output=True)
    found = Tree(pristine.upstream).work_tree()
    pristine.git("clean", "-qfd")
    pristine.git("checkout", "-q", "--force", "HEAD")
    pristine.run(operations.apply)
    assert found == pristine.git("rev-parse", "HEAD^{tree}")
