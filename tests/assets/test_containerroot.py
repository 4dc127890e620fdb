import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from leonardo.assets import containerroot
from leonardo.assets.containerroot import NoContainerRootError

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


@pytest.fixture(autouse=True)
def _ids() -> None:
    try:
        containerroot.own_ids()
    except NoContainerRootError as error:
        pytest.skip(f"no range of ids here: {error}")


def run(script: str, timeout: float = 20, reach: tuple[Path, ...] = ()) -> tuple[int, str]:
    with tempfile.TemporaryFile() as output:
        command = ["bash", "-c", script]
        code = containerroot.run(command, output, timeout=timeout, environment=ENVIRONMENT, reach=reach)
        output.seek(0)
        return code, output.read().decode()


def test_root_with_ids_and_an_exit_code() -> None:
    code, said = run(
        "id -u; touch $(mktemp -u) ; t=$(mktemp); chown 33:33 $t && stat -c %u:%g $t; rm $t; umask; exit 7"
    )
    assert code == 7
    assert said.split() == ["0", "33:33", "0022"]


def test_it_has_no_rights_of_the_callers_root(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("a plain user's root inside is himself outside")
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    assert run(f"cat {secret}")[0] != 0


def test_folders_behind_closed_ones_can_be_reached(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "a" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("here")
    (tmp_path / "closed" / "other").write_text("hidden")
    (tmp_path / "closed").chmod(0o700)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to("/tmp/pytest-of-root"):
            folder.chmod(0o755)
    assert run(f"cat {inner}/file", reach=(inner,)) == (0, "here")
    if os.geteuid() == 0:
        assert run(f"cat {tmp_path}/closed/other", reach=(inner,))[0] != 0
    assert (inner / "file").exists()


def test_all_that_it_started_ends_with_it() -> None:
    code, said = run("setsid sleep 987654 > /dev/null & echo $$")
    assert code == 0
    deadline = time.monotonic() + 5
    while _sleeps() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _sleeps()
    assert int(said) < 100, "a pid namespace of its own"


def test_time_is_bounded() -> None:
    began = time.monotonic()
    assert run("sleep 987655", timeout=0.5)[0] == 124
    assert time.monotonic() - began < 10


def test_it_can_be_stopped() -> None:
    stopped = threading.Event()
    threading.Timer(0.3, stopped.set).start()
    with tempfile.TemporaryFile() as output:
        command = ["sleep", "987656"]
        assert containerroot.run(command, output, timeout=60, environment=ENVIRONMENT, stopped=stopped) == 124


def test_a_caller_that_is_killed_leaves_nothing() -> None:
    script = (
        "import sys; from leonardo.assets import containerroot\n"
        "command = ['bash', '-c', 'setsid sleep 987654 & sleep 987654']\n"
        f"containerroot.run(command, sys.stdout.buffer, timeout=60, environment={ENVIRONMENT})\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 10
    while not _sleeps(2) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _sleeps(2), "it runs"
    caller.kill()
    caller.wait()
    while _sleeps() and time.monotonic() < deadline + 5:
        time.sleep(0.05)
    assert not _sleeps()


def test_a_command_that_is_not_there() -> None:
    with tempfile.TemporaryFile() as output:
        assert containerroot.run(["/no/such"], output, timeout=10, environment=ENVIRONMENT) == 127


def _sleeps(fewest: int = 1) -> bool:
    """Whether that many of the tests' own sleeping processes run."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found += (folder / "cmdline").read_bytes() == b"sleep\x00987654\x00"
    return found >= fewest
