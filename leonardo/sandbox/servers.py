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


class Asker:
    """A process that asks for names in ``folder``, since whoever asks may hang; :attr:`answers` has a byte for each.

    Args:
        folder: on the file system that is asked about.
        mount_namespace: a descriptor of the one that has it; None for this process's own.
    """

    def __init__(self, folder: str, mount_namespace: int | None = None) -> None:
        self.answers, answer = os.pipe2(os.O_CLOEXEC)
        self._heard = time.monotonic()
        self.process = linux.clone(0)
        if not self.process:
            try:
                _ask_for_ever(folder, mount_namespace, answer)
            finally:
                os._exit(1)
        os.close(answer)

    def hear(self) -> bool:
        """Take in what has been answered (:attr:`answers` is ready); whether it was as it should be.

        Raises EOFError when the process has ended.
        """
        answer = os.read(self.answers, 4096)
        if not answer:
            raise EOFError
        if b"!" in answer:
            return False
        self._heard = time.monotonic()
        return True

    @property
    def is_overdue(self) -> bool:
        """Whether no answer has come for :data:`PATIENCE`."""
        return time.monotonic() - self._heard > PATIENCE


class Servers:
    """The processes that serve a holder's files, watched by the guard.

    Args:
        processes: their ids.
    """

    def __init__(self, processes: Sequence[int]) -> None:
        self._names: dict[int, str] = {}
        self._asker: Asker | None = None
        for process in processes:
            try:
                handle = os.pidfd_open(process)
            except OSError:
                continue  # an old kernel: then only the asker tells
            self._names[handle] = linux.read(f"/proc/{process}/comm").strip()

    def ask_about(self, folder: str, mount_namespace: int) -> None:
        """Start asking for names in ``folder`` of a mount namespace (a descriptor, which is closed)."""
        self._asker = Asker(folder, mount_namespace)
        os.close(mount_namespace)

    def register(self, poll: select.poll) -> None:
        """Have ``poll`` wake up when a server ends or an answer comes."""
        for descriptor in (*self._names, *([self._asker.answers] if self._asker else [])):
            poll.register(descriptor, select.POLLIN)

    @property
    def patience(self) -> float | None:
        """Milliseconds that a poll may wait."""
        return 1000 if self._asker else None

    def complaint(self, ready: dict[int, int]) -> str:
        """What is wrong, in words, given what a poll found; ``""`` when nothing is."""
        for handle in ready.keys() & self._names.keys():
            return f"{self._names[handle]}, which serves its files, ended"
        if self._asker and self._asker.answers in ready:
            try:
                served = self._asker.hear()
            except EOFError:
                served = False
            if not served:
                return "its files are served no more"
        if self._asker and self._asker.is_overdue:
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
        if self._asker:
            os.kill(self._asker.process, signal.SIGKILL)


def _ask_for_ever(folder: str, mount_namespace: int | None, answer: int) -> None:
    linux.die_with_parent()
    if mount_namespace is not None:
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
