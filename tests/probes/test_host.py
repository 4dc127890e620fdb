"""What the probes say of this machine, as root and as a plain user, against what is plainly so."""

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leonardo.cluster import ApptainerLimits
from leonardo.probes import cluster, host
from leonardo.probes.probe import Result

PROJECT = Path(__file__).parents[2]

_ASK = """
import json
from dataclasses import asdict
from leonardo.probes.host import PROBES
print(json.dumps([asdict(probe()) for probe in PROBES]))
"""


def results_of(user: str) -> dict[str, Result]:
    """The host's probes as another user, who has a copy of the project that he may read."""
    group = str(pwd.getpwnam(user).pw_gid)
    command = ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", sys.executable, "-c", _ASK]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "HOME": "/tmp", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
    if done.returncode != 0 and ("Permission denied" in done.stderr or "No module named" in done.stderr):
        pytest.skip(f"{user} cannot read the project or its environment")
    assert done.returncode == 0, done.stderr
    return {entry["id"]: Result(**entry) for entry in json.loads(done.stdout)}


def test_each_says_what_it_is_about() -> None:
    """Every probe answers, by its own id, and says what a gap costs and what to do."""
    results = [probe() for probe in host.PROBES]
    assert len({result.id for result in results}) == len(results)
    for result in results:
        assert result.what and "\n" not in result.what
        assert (result.state == "ok") == (not result.costs)


def test_docs_explain_each() -> None:
    """docs/doctor.md has every probe's id."""
    page = (PROJECT / "docs/doctor.md").read_text()
    sources = "".join(path.read_text() for path in (PROJECT / "leonardo/probes").glob("*.py"))
    ids = set(re.findall(r'(?:Result|ok)\(\s*"([a-z-]+)"', sources)) | {"apptainer", "space"}
    assert len(ids) >= 20
    for part in page.split("## What has been tried"):  # what it means, and what was tried
        assert [name for name in sorted(ids) if f"| `{name}` |" not in part] == []
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in re.findall(r"`(test_\w+)`", page) if f"def {name}(" not in tests] == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")
@pytest.mark.parametrize("user", ["root", "labuser", "nobody"])
def test_right_for(user: str) -> None:
    """Each probe against another way to know."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        pytest.skip(f"no user {user}")
    seen = results_of(user)
    namespaces = subprocess.run(
        ["setpriv", "--reuid", user, "--regid", str(entry.pw_gid), "--clear-groups", "unshare", "-U", "true"]
    )
    assert (seen["user-namespaces"].state == "ok") == (namespaces.returncode == 0)
    subuids = Path("/etc/subuid").read_text() if Path("/etc/subuid").exists() else ""
    mapped = user == "root" or (f"{user}:" in subuids and shutil.which("newuidmap") is not None)
    assert (seen["many-ids"].state == "ok") == mapped
    readable = user == "root" or (Path("/dev/fuse").exists() and Path("/dev/fuse").stat().st_mode & 0o006 == 0o006)
    assert (seen["fuse"].state == "ok") == bool(readable)
    assert seen["kernel"].what.endswith(os.uname().release)
    if user != "root":
        assert seen["cgroups"].state == "degraded"  # nobody delegates one here


def test_old_apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is older than what was tried is told so; one that is not there, too."""
    program = tmp_path / "oldtainer"
    program.write_text("#!/bin/sh\necho apptainer version 1.0.3-1.el8\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert cluster.apptainer(ApptainerLimits(command="oldtainer")).costs == "older than 1.1, which was tried"
    assert cluster.apptainer(ApptainerLimits(command="oldtainer", least="1.0")).state == "ok"
    assert cluster.apptainer(ApptainerLimits(command="notainer")).state == "degraded"


def test_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Degraded where there is none, and well again with one in ``PATH``."""
    assert host.git().state == "ok"
    found = shutil.which("git")
    assert found is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.git().state == "degraded" and "\n" not in host.git().what
    (tmp_path / "git").symlink_to(found)
    assert host.git().state == "ok"


def test_locale_is_utf8() -> None:
    """The tests' own is."""
    assert host.locale().state == "ok"
