"""Which host ids a driver's user namespace gets: the same path for root and for a plain user.

Root inside a sandbox is never root on the host. A plain user's namespace has his own id as 0 and his subordinate ids
(/etc/subuid, /etc/subgid) from 1 on; root's has subordinate ids if root was given some, else 65,536 ids from
1,000,000,000 on, which no account has.
"""

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT_RANGE = (1_000_000_000, 65_536)
"""First host id and count, for root without a line in /etc/subuid."""
FEWEST = 65_535
"""With fewer ids than this some of a distribution's own accounts (nobody is 65534) have none."""

Range = tuple[int, int]


@dataclass(frozen=True)
class Identities:
    """How to map a namespace's ids.

    Attributes:
        users, groups: numbers in threes as in uid_map: first id inside, first id outside, count.
        programs: write them by newuidmap and newgidmap (a plain user's way to more than his own id).
        degraded: what it costs, in words, where this is not a full range of unprivileged ids.
    """

    users: tuple[int, ...]
    groups: tuple[int, ...]
    programs: bool = False
    degraded: str = ""

    @property
    def single(self) -> bool:
        """Whether only one id is mapped."""
        return len(self.users) == 3 and self.users[2] == 1

    @property
    def root(self) -> tuple[int, int]:
        """The host's user and group id that is 0 inside."""
        return self.users[1], self.groups[1]


class NoRangeError(Exception):
    """There are no subordinate ids to be had, and why."""


def full() -> Identities:
    """A range of ids for this process's user. Raises :class:`NoRangeError` in one line."""
    return _for_root() if os.geteuid() == 0 else _for_user()


def single(reason: str) -> Identities:
    """Only the caller's own id; works wherever user namespaces do."""
    cost = "one user id only: chown and su fail, packages must be installed with APT::Sandbox::User=root"
    return Identities((0, os.geteuid(), 1), (0, os.getegid(), 1), degraded=f"{cost} ({reason})")


def _for_root() -> Identities:
    available = _available(Path("/proc/self/uid_map")), _available(Path("/proc/self/gid_map"))
    users = subordinate(Path("/etc/subuid"), "root", 0) or ROOT_RANGE
    groups = subordinate(Path("/etc/subgid"), "root", 0) or ROOT_RANGE
    if _holds(available[0], users) and _holds(available[1], groups):
        return Identities((0, *users), (0, *groups))
    # a container's root, whose own ids end long before: what it has is mapped onto itself
    cost = "root in a sandbox is root of the container this runs in: its own ids are all that there are"
    counts = available[0][0][1], available[1][0][1]
    if available[0][0][0] or available[1][0][0]:
        raise NoRangeError("root's own ids do not begin at 0")
    return Identities((0, 0, counts[0]), (0, 0, counts[1]), degraded=cost)


def _for_user() -> Identities:
    for program in ("newuidmap", "newgidmap"):
        if not shutil.which(program):
            raise NoRangeError(f"{program} is not installed (package uidmap)")
    name = pwd.getpwuid(os.geteuid()).pw_name if _has_account() else ""
    users = subordinate(Path("/etc/subuid"), name, os.geteuid())
    groups = subordinate(Path("/etc/subgid"), name, os.geteuid())
    if not users or not groups:
        raise NoRangeError(f"no line for {name or os.geteuid()} in /etc/subuid and /etc/subgid")
    return Identities(
        (0, os.geteuid(), 1, 1, *users),
        (0, os.getegid(), 1, 1, *groups),
        programs=True,
        degraded="" if min(users[1], groups[1]) >= FEWEST else f"only {min(users[1], groups[1])} subordinate ids",
    )


def _has_account() -> bool:
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return True


def subordinate(table: Path, name: str, number: int) -> Range | None:
    """The largest range of a user in a table like /etc/subuid (lines of ``name-or-number:first:count``)."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return None
    ranges = []
    for line in lines:
        fields = line.split(":")
        if len(fields) == 3 and fields[0] in (name, str(number)) and fields[1].isdigit() and fields[2].isdigit():
            ranges.append((int(fields[1]), int(fields[2])))
    return max(ranges, key=lambda item: item[1], default=None)


def _available(table: Path) -> list[Range]:
    """Ranges of ids (first, count) that this process's own namespace knows."""
    return [(int(line.split()[0]), int(line.split()[2])) for line in table.read_text().splitlines()]


def _holds(available: list[Range], wanted: Range) -> bool:
    return any(first <= wanted[0] and wanted[0] + wanted[1] <= first + count for first, count in available)
