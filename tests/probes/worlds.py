"""Machines that lack something, made from this one: a private mount namespace, a lower limit, a kernel that refuses.

A world is entered by root, and looked at from inside by root or by a plain user, by the probes and real sandboxes.
"""

import json
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from leonardo.probes.probe import Result

PROJECT = Path(__file__).parents[2]
FIRST_ID = 3_000_000

_THERE = "the-world-is-there"

_ASK = """
import json, sys, tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from leonardo.errors import InfrastructureError
from leonardo.probes import host
from leonardo.sandbox import drivers
from leonardo.sandbox.driver import LayerStack, Limits

probes, labels, base, script = json.loads(sys.argv[1])
found = {name: asdict(getattr(host, name.replace("-", "_"))()) for name in probes}
served = {}
for candidate in drivers.CANDIDATES:
    if candidate.label not in labels:
        continue
    try:
        with candidate.opened() as driver, tempfile.TemporaryDirectory() as place:
            served[candidate.label] = [True, driver.degraded, ""]
            if base:
                folder = Path(place, "base")
                driver.unpack(Path(base), folder)
                backend = driver.backend(LayerStack(folder), timeout=20, limits=Limits(disk=64 << 20, memory=128 << 20))
                try:
                    backend.start()
                    done = backend.run_command(script)
                    served[candidate.label][2] = f"{done.exit_code}: {done.stdout.strip()}"
                except Exception as error:
                    served[candidate.label][2] = type(error).__name__
                finally:
                    with suppress(Exception):
                        backend.close()
                    driver.remove(folder)
    except InfrastructureError as error:
        served[candidate.label] = [False, error.what, ""]
print("said:" + json.dumps([found, served]))
"""


@dataclass(frozen=True)
class World:
    """What is different in it.

    Attributes:
        lines: shell, by root in a mount namespace of its own.
        refuses: file systems that its kernel does not allow in user namespaces.
        within: words before the program, as the user who looks.
        variables: of the program.
        ids: subordinate ids that the plain user has; none if 0.
    """

    lines: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    ids: int = 65_536


@dataclass(frozen=True)
class Served:
    """What a driver did: it serves or says why not; what the script in its sandbox came to."""

    serves: bool
    note: str
    outcome: str


def devices(*without: str) -> tuple[str, ...]:
    """Lines that make a /dev of one's own, without some of its entries."""
    return tuple(_DEVICES.format("|".join((*without, "."))).splitlines())


_DEVICES = """\
mount -t tmpfs -o mode=755 tmpfs /mnt
for one in /dev/*; do
new=/mnt/${{one#/dev/}}
case ${{one#/dev/}} in {}) continue ;; esac
if [ -L "$one" ]; then cp -a "$one" "$new"; continue; fi
if [ -d "$one" ]; then mkdir "$new"; else touch "$new"; fi
mount --rbind "$one" "$new"
done
mount --rbind /mnt /dev
umount -R -l /mnt"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a shell script into ``folder`` that is the first program of that name in PATH."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


class Entered:
    """Enters worlds. ``folder``: readable by all, for a copy of the project and homes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plain = _plain_user()
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / "leonardo", folder / "leonardo", ignore=ignored)
        if (PROJECT / ".tools/apptainer").exists():
            (folder / ".tools").symlink_to((PROJECT / ".tools").resolve())
        subprocess.run(["chmod", "-R", "a+rX", folder / "leonardo"], check=True)
        for name in ("root", "plain"):
            (folder / name).mkdir()
        os.chown(folder / "plain", self.plain.pw_uid, self.plain.pw_gid)
        self.python = self._python()

    def look(
        self,
        world: World,
        user: str,
        probes: tuple[str, ...] = (),
        drivers: tuple[str, ...] = (),
        base: Path | None = None,
        script: str = "",
    ) -> tuple[dict[str, Result], dict[str, Served]]:
        """What ``root`` or the ``plain`` user finds there.

        Args:
            world: as it is.
            user: who looks.
            probes: ids of the host's.
            drivers: labels of those to open.
            base: a root's archive, on which each driver runs ``script``.
            script: a command.
        """
        for _ in range(3):
            found, served = self._look(world, user, probes, drivers, base, script)
            # the filter of a world that refuses may be interrupted by a signal, which no mount is
            if not any("Interrupted system call" in driver.note + driver.outcome for driver in served.values()):
                break
        return found, served

    def _look(
        self, world: World, user: str, probes: tuple[str, ...], drivers: tuple[str, ...], base: Path | None, script: str
    ) -> tuple[dict[str, Result], dict[str, Served]]:
        asked = json.dumps([probes, drivers, str(self.readable(base)) if base else "", script])
        done = self.run(world, user, self.python, "-c", _ASK, asked)
        if _THERE not in done.stderr:
            pytest.skip(f"this world cannot be made here: {done.stderr.strip()[-200:]}")
        line = next((line for line in done.stdout.splitlines() if line.startswith("said:")), None)
        assert line is not None, done.stdout + done.stderr
        found, served = json.loads(line.removeprefix("said:"))
        return (
            {name: Result(**entry) for name, entry in found.items()},
            {label: Served(*entry) for label, entry in served.items()},
        )

    def run(self, world: World, user: str, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command there."""
        home = self.folder / user
        table = home.parent / "subordinate"
        table.write_text(f"{self.plain.pw_name}:{FIRST_ID}:{world.ids}\n" if world.ids else "")
        lines = [f"mount --bind {table} /etc/sub{kind}" for kind in ("uid", "gid")]
        script = "\n".join(["set -e", *lines, *world.lines, f"echo {_THERE} >&2", 'exec "$@"'])
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
        if world.refuses:
            words += [sys.executable, str(Path(__file__).with_name("refuse.py")), ",".join(world.refuses), "--"]
        if user == "plain":
            own = str(self.plain.pw_uid), str(self.plain.pw_gid)
            words += ["setpriv", "--reuid", own[0], "--regid", own[1], "--clear-groups", "--inh-caps=-all"]
        variables = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": "/tmp", "PYTHONPATH": str(self.folder)}
        variables |= {"PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"} | world.variables
        words += ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), *world.within]
        return subprocess.run([*words, *command], capture_output=True, text=True, timeout=120, cwd="/")

    def readable(self, file: Path) -> Path:
        """A copy that a plain user may read."""
        copy = self.folder / file.name
        if not copy.exists():
            shutil.copyfile(file, copy)
        return copy

    def _python(self) -> str:
        """One that a plain user may run, too."""
        for candidate in (sys.executable, "/usr/bin/python3"):
            question = "import sys, json, ctypes; sys.exit(sys.version_info < (3, 11))"
            self.python = candidate
            if self.run(World(), "plain", candidate, "-E", "-c", question).returncode == 0:
                return candidate
        pytest.skip(f"no Python from 3.11 on that {self.plain.pw_name} may run")


def _plain_user() -> pwd.struct_passwd:
    for name in ("labuser", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("no plain user here")
