"""A command as root of a user namespace with the ids that drivers map, and with processes and mounts of its own.

Builds of full images run so: Apptainer is root there with every id that a distribution needs, what it makes belongs to
the ids that sandboxes expect, and a script's ``chown`` works, whoever the caller is. When the command ends, or its
caller does, everything that it started ends too.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from leonardo.sandbox import identities, linux
from leonardo.sandbox.identities import Identities, NoRangeError

_BOOT = "import sys; sys.path.append({root!r}); from leonardo.assets.containerroot import main; main()"
_UMASK = 0o022


class NoContainerRootError(Exception):
    """There is no such namespace to be had here, and why."""


def own_ids() -> Identities:
    """The ids that the commands' namespace maps. Raises NoContainerRootError where they are too few."""
    try:
        found = identities.full()
    except NoRangeError as error:
        raise NoContainerRootError(str(error)) from error
    if found.degraded:
        raise NoContainerRootError(found.degraded)
    return found


def run(
    command: Sequence[str | Path],
    output: IO[bytes],
    *,
    timeout: float,
    environment: Mapping[str, str],
    reach: Sequence[Path] = (),
    stopped: threading.Event | None = None,
) -> int:
    """Run ``command`` and return its exit code; 124 if it was ended after ``timeout`` seconds or since ``stopped``.

    Args:
        output: gets its stdout and stderr.
        environment: all of its variables.
        reach: folders that it must be able to enter although folders above them may be closed to others: root's
            namespace has none of the host root's rights.

    Raises:
        NoContainerRootError: no user namespace with a range of ids can be made here.
    """
    ids = own_ids()
    settings = {
        "command": [str(word) for word in command],
        "users": ids.users,
        "groups": ids.groups,
        "programs": ids.programs,
        "reach": [str(path) for path in reach] if os.geteuid() == 0 else [],
    }
    package_root = str(Path(__file__).resolve().parents[2])
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", _BOOT.format(root=package_root), json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=dict(environment),
        start_new_session=True,
    ) as process:
        try:
            return _wait(process, timeout, stopped)
        finally:
            process.kill()  # the kernel then ends the namespace's first process, and with it all others


def _wait(process: subprocess.Popen[bytes], timeout: float, stopped: threading.Event | None) -> int:
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0 and not (stopped and stopped.is_set()):
        try:
            return process.wait(min(left, 0.5))
        except subprocess.TimeoutExpired:
            continue
    return 124


# --- the helper process: standard library only ------------------------------------------------------------------------


def main() -> None:
    """Entry point of the helper process."""
    settings = json.loads(sys.argv[1])
    linux.die_with_parent()
    os.umask(_UMASK)
    if settings["reach"]:
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
        _open_ways(settings["reach"])
    _enter_user_namespace(settings)
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC)
    first = os.fork()
    if first == 0:
        _first_process(settings["command"])
    os._exit(_exit_code(os.waitpid(first, 0)[1]))


def _open_ways(paths: Sequence[str]) -> None:
    """Lay an empty folder over every closed folder above one of ``paths``, and the paths in it."""
    held = [(Path(path), os.open(path, os.O_PATH | os.O_DIRECTORY)) for path in paths]
    closed = {path: _closed_above(path) for path, _ in held}
    for folder in sorted({folder for folder in closed.values() if folder}):
        linux.mount("tmpfs", str(folder), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")
    for path, handle in held:
        if closed[path]:
            path.mkdir(parents=True, exist_ok=True)
            linux.bind(f"/proc/self/fd/{handle}", str(path))
        os.close(handle)


def _closed_above(path: Path) -> Path | None:
    """The uppermost folder above ``path`` that others may not enter."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)


def _enter_user_namespace(settings: Mapping[str, Any]) -> None:
    """A process that stays behind writes the maps: from inside only one's own id may be mapped."""
    entered_read, entered_write = os.pipe()
    pid = os.getpid()
    mapper = os.fork()
    if mapper == 0:
        os.close(entered_write)
        if os.read(entered_read, 1):
            with suppress(OSError, subprocess.SubprocessError):
                for kind, numbers in (("uid", settings["users"]), ("gid", settings["groups"])):
                    _write_map(pid, kind, numbers, settings["programs"])
                os._exit(0)
        os._exit(1)
    linux.unshare(linux.CLONE_NEWUSER)
    os.write(entered_write, b"x")
    os.close(entered_write)
    os.close(entered_read)
    if os.waitpid(mapper, 0)[1]:
        sys.exit("the user namespace's ids could not be mapped")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    linux.die_with_parent()  # the change of ids forgot it


def _write_map(pid: int, kind: str, numbers: Sequence[int], programs: bool) -> None:
    if programs:
        subprocess.run([f"new{kind}map", str(pid), *map(str, numbers)], check=True)
    else:
        lines = [" ".join(map(str, numbers[first : first + 3])) for first in range(0, len(numbers), 3)]
        Path(f"/proc/{pid}/{kind}_map").write_text("\n".join(lines))


def _first_process(command: Sequence[str]) -> None:
    """Process 1 of the new pid namespace: mount /proc, run the command, collect what is left behind."""
    linux.die_with_parent()
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: cannot be started: {error.strerror}", flush=True)
            os._exit(127)
    while True:
        ended, status = os.wait()
        if ended == child:
            os._exit(_exit_code(status))


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
