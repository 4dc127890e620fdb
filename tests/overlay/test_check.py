"""The rules: a sound stack has no finding, and each planted fault is found and named."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leonardo.overlay.check import check
from leonardo.overlay.page import PAGE, render_page
from leonardo.overlay.stack import read_stack
from leonardo.overlay.tree import Tree
from tests.overlay.conftest import Lab, git

PROJECT = Path(__file__).parents[2]

FIRST = "0001-run-add-first.patch"
SECOND = "0002-run-add-second.patch"


def edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    """A fault: ``old`` in a file of the stack becomes ``new``."""

    def plant(folder: Path) -> None:
        data = (folder / name).read_bytes()
        assert old.encode() in data
        (folder / name).write_bytes(data.replace(old.encode(), new.encode(), 1))

    return plant


def header_field_missing(folder: Path) -> None:
    lines = (folder / FIRST).read_text().splitlines(keepends=True)
    (folder / FIRST).write_text("".join(line for line in lines if not line.startswith("Drop-When: ")))


def wrong_blob(folder: Path) -> None:
    text = (folder / SECOND).read_text()
    start = text.index("index ") + 6
    (folder / SECOND).write_text(text[:start] + "0123456789" + text[start + 10 :])


def wrong_content(folder: Path) -> None:
    edited(SECOND, "+added = 1", "+added = 2")(folder)


def carriage_returns(folder: Path) -> None:
    (folder / FIRST).write_bytes((folder / FIRST).read_bytes().replace(b"\n", b"\r\n"))


def unlisted(folder: Path) -> None:
    (folder / "0003-run-add-third.patch").write_bytes((folder / SECOND).read_bytes())


def unlocked(folder: Path) -> None:
    lines = (folder / "upstream.lock").read_text().splitlines(keepends=True)
    (folder / "upstream.lock").write_text("".join(line for line in lines if "extra" not in line))


FAULTS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "context line": (edited(FIRST, "+first = True", " step_5 = 5\n+first = True"), FIRST, "context line"),
    "removed line": (edited(FIRST, "+first = True", "-step_6 = 6\n+first = True"), FIRST, "removed line"),
    "heading": (edited(FIRST, "+6 @@", "+6 @@ def something():"), FIRST, "heading"),
    "wrong blob": (wrong_blob, SECOND, "wrong blob"),
    "wrong content": (wrong_content, SECOND, "wrong blob"),
    "missing header field": (header_field_missing, FIRST, "missing header field"),
    "header field not filled in": (
        edited(FIRST, "Why: a test needs it", "Why: what upstream lacks"), FIRST, "missing header field",
    ),
    "unlisted file": (unlisted, "0003-run-add-third.patch", "unlisted file"),
    "file not in the lock": (unlocked, "upstream.lock", "unlisted file"),
    "listed twice": (edited("series", f"{FIRST}\n", f"{FIRST}\n{FIRST}\n"), FIRST, "listed twice"),
    "order broken": (edited("series", f"{FIRST}\n{SECOND}\n", f"{SECOND}\n{FIRST}\n"), "series", "order broken"),
    "hook to a missing function": (
        edited(SECOND, "announce_pause", "announce_nothing"), SECOND, "hook to a missing function",
    ),
    "hook to a missing module": (
        edited(SECOND, "hooks.weights", "hooks.heights"), SECOND, "hook to a missing function",
    ),
    "CRLF": (carriage_returns, FIRST, "CRLF"),
    "trailing blank": (edited(FIRST, "+first = True", "+first = True "), FIRST, "trailing blank"),
    "file mode": (edited(FIRST, " 100644\n", " 100755\n"), FIRST, "file mode"),
    "mode changed": (edited(FIRST, "index ", "old mode 100644\nnew mode 100755\nindex "), FIRST, "file mode"),
    "new file of an odd mode": (edited(SECOND, "new file mode 100644", "new file mode 100600"), SECOND, "file mode"),
}  # fmt: skip


def test_sound_stack_has_no_finding(lab: Lab) -> None:
    assert check(lab.stack, lab.project).findings == ()
    report = check(lab.stack, lab.project, Tree(lab.upstream))
    assert report.findings == ()
    assert report.figures | {"findings": []} == {
        "patches": 2, "hooks": 1, "files": 2, "inserted_lines": 3, "removed_lines": 0, "context_lines": 0,
        "with_tree": True, "findings": [],
    }  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found_and_named(lab: Lab, fault: str) -> None:
    plant, where, kind = FAULTS[fault]
    plant(lab.project / "patches")
    (lab.project / PAGE).write_text(render_page(lab.stack))  # so that the page is not what is found
    findings = check(lab.stack, lab.project).findings
    named = [finding for finding in findings if finding.kind == kind and where in str(finding)]
    assert named, [str(finding) for finding in findings]
    if kind not in ("context line", "removed line"):
        assert not [finding for finding in findings if finding.kind in ("context line", "removed line")]


def test_page_that_does_not_match_is_found(lab: Lab) -> None:
    (lab.project / PAGE).write_text("by hand\n")
    assert [finding.kind for finding in check(lab.stack, lab.project).findings] == ["out of date"]


def test_inserted_line_that_was_edited_is_found_with_the_tree(lab: Lab) -> None:
    edited(FIRST, "+first = True", "+first = None")(lab.project / "patches")
    (lab.project / PAGE).write_text(render_page(lab.stack))
    assert check(lab.stack, lab.project).findings == ()  # offline nothing tells: the blob's content is upstream's
    findings = check(lab.stack, lab.project, Tree(lab.upstream)).findings
    assert [finding.kind for finding in findings] == ["does not apply"]
    assert FIRST in findings[0].text


def test_line_at_another_place_is_found_with_the_tree(lab: Lab) -> None:
    edited(FIRST, "@@ -5,0 +6 @@", "@@ -7,0 +8 @@")(lab.project / "patches")
    assert [finding.kind for finding in check(lab.stack, lab.project, Tree(lab.upstream)).findings] == [
        "does not apply"
    ]


def test_submodule_at_another_commit_is_found(lab: Lab) -> None:
    git(lab.project, "init", "-q")
    git(lab.project, "update-index", "--add", "--cacheinfo", f"160000,{lab.commits['pin']},upstream")
    assert check(lab.stack, lab.project).findings == ()
    git(lab.project, "update-index", "--cacheinfo", f"160000,{lab.commits['later']},upstream")
    (finding,) = check(lab.stack, lab.project).findings
    assert finding.kind == "gitlink" and f"160000,{lab.commits['pin']},upstream" in finding.text


def test_projects_own_stack_is_sound() -> None:
    assert check(read_stack(PROJECT / "patches"), PROJECT).findings == ()


@pytest.mark.parametrize("upstream", ["upstream", "absent"])
def test_command_writes_its_verdict(lab: Lab, tmp_path: Path, upstream: str) -> None:
    words = [sys.executable, "-m", "leonardo.cli", "patches", "check", "--project", str(lab.project)]
    words += ["--upstream", str(lab.project / upstream), "--out", str(tmp_path / "out")]
    sound = subprocess.run(words, capture_output=True, text=True)
    assert sound.returncode == 0, sound.stderr
    verdict = json.loads((tmp_path / "out" / "check-patches.json").read_text())
    assert verdict["ok"] and verdict["pins"]["upstream"] == lab.commits["pin"]
    assert (verdict["figures"]["removed_lines"], verdict["figures"]["context_lines"]) == (0, 0)
    edited(FIRST, "+first = True", "-step_6 = 6\n+first = True")(lab.project / "patches")
    faulty = subprocess.run(words, capture_output=True, text=True)
    assert faulty.returncode == 1 and "removed line" in faulty.stdout and not faulty.stderr
    verdict = json.loads((tmp_path / "out" / "check-patches.json").read_text())
    assert not verdict["ok"] and verdict["figures"]["removed_lines"] == 1
