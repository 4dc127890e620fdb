"""What a holder's files are served by, and whether it still does: processes of FUSE file systems, and a container.

A FUSE process that hangs (stopped, or its disk does not answer) leaves whoever reads in a wait that not even a kill
ends; the one cure is to end the server. The guard asks for a name that no folder has, once a second, by a process
made for it, since the asker may hang, too.
"""

import errno
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

from leonardo.sandbox import linux

INTERVAL = 0.5
PATIENCE = 3.0
"""Seconds without an answer after which a server is given up."""
_HEAD_START = 0.02
HUNG = 75
"""Exit code of a guard whose holder's files were served no more."""


class Servers:
    """The processes that serve a holder's files, watched by the guard.

    Args:
        processes: their ids.
    """

    def __init__(self, processes: Sequence[int]) -> None:
        self._names: dict[int, str] = {}
        self._asker = -1
        self._answers: int | None = None
        self._heard = time.monotonic()
        for process in processes:
            try:
                handle = os.pidfd_open(process)
            except OSError:
                continue  # an old kernel: then only the asker tells
            self._names[handle] = linux.read(f"/proc/{process}/comm").strip()

    def ask_about(self, folder: str, mount_namespace: int) -> None:
        """Start asking for names in ``folder`` of a mount namespace (a descriptor, which is closed)."""
        self._answers, answer = os.pipe2(os.O_CLOEXEC)
        self._asker = linux.clone(0)
        if not self._asker:
            try:
                _ask_for_ever(folder, mount_namespace, answer)
            finally:
                os._exit(1)
        os.close(answer)
        os.close(mount_namespace)

    def register(self, poll: select.poll) -> None:
        """Have ``poll`` wake up when a server ends or an answer comes."""
        for descriptor in (*self._names, *([] if self._answers is None else [self._answers])):
            poll.register(descriptor, select.POLLIN)

    @property
    def patience(self) -> float | None:
        """Milliseconds that a poll may wait."""
        return None if self._answers is None else 1000

    def complaint(self, ready: dict[int, int]) -> str:
        """What is wrong, in words, given what a poll found; ``""`` when nothing is."""
        for handle in ready.keys() & self._names.keys():
            return f"{self._names[handle]}, which serves its files, ended"
        if self._answers in ready:
            answer = os.read(self._answers, 4096)
            if not answer.strip(b"."):
                self._heard = time.monotonic()
            if not answer or b"!" in answer:
                return "its files are served no more"
        if self._answers is not None and time.monotonic() - self._heard > PATIENCE:
            return f"{self._serving()} has not answered for {PATIENCE:.0f} s"
        return ""

    def _serving(self) -> str:
        return next((name for name in self._names.values() if "fuse" in name), "what serves its files")

    def end(self) -> None:
        """Kill the FUSE processes, so that whoever waits for them waits no more, and the asker. The holder was killed
        before: a sandbox must not live to see its files fail."""
        if self._names:
            time.sleep(_HEAD_START)
        for handle, name in self._names.items():
            if "fuse" in name:
                try:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                except OSError:
                    pass  # it has ended
        if self._asker > 0:
            os.kill(self._asker, signal.SIGKILL)


def _ask_for_ever(folder: str, mount_namespace: int, answer: int) -> None:
    linux.die_with_parent()
    linux.join_namespace(mount_namespace, linux.CLONE_NEWNS)
    number = 0
    while True:
        number += 1
        try:
            os.lstat(f"{folder}/.asked-{os.getpid()}-{number}")
        except OSError as error:
            os.write(answer, b"." if error.errno == errno.ENOENT else b"!")
        time.sleep(INTERVAL)


def say(complaint: str) -> None:
    """Leave a line for the driver, which reads it when the guard has ended."""
    print(complaint, file=sys.stderr, flush=True)
