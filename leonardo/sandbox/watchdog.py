"""What a sandbox uses of the machine, read from /proc by the holder, which sees every process below it.

Resident sizes count shared pages once a process, so their sum is too high at worst; only where it exceeds the limit is
the proportional size (slow to get) asked for. Files in memory (memfd_create) that a process holds without mapping them
are looked for when the machine has so much shared memory that they matter.
"""

import os
from collections import defaultdict

_PAGE = os.sysconf("SC_PAGE_SIZE")

LONGEST_PAUSE, SHORTEST_PAUSE = 0.25, 0.01
"""Seconds between two looks."""
MOST_PAUSE = 1.0
"""Seconds between two looks, whatever a look costs."""
FASTEST_GROWTH = 2 << 30
"""Bytes a second that a sandbox is taken to be able to fill: looks come so often that it does not get far over."""
_PROCESSES_FACTOR = 2  # the kernel counts by user id; this is for those who fork under many


class Usage:
    """One process: its parent and its resident set in bytes."""

    def __init__(self, parent: int, resident: int) -> None:
        self.parent, self.resident = parent, resident


class Bounds:
    """What a sandbox may use: bytes of memory, and processes under one user id."""

    def __init__(self, memory: int, processes: int) -> None:
        self.memory, self.processes = memory, processes


class Look:
    """What :func:`look` saw: root process -> what it has too much of, and the fewest bytes that one has left."""

    def __init__(self, over: dict[int, str], headroom: int) -> None:
        self.over, self.headroom = over, headroom

    def pause(self, cost: float) -> float:
        """Seconds until the next look is due, when this one cost ``cost`` seconds of a processor.

        A look takes a twentieth of a processor, a fifth where little memory is left, unless the pause would be too long
        then. How long the holder waited for its turn does not count: on a busy machine a look of 3 ms may last half a
        second.
        """
        wanted = min(LONGEST_PAUSE, max(SHORTEST_PAUSE, self.headroom / FASTEST_GROWTH))
        return min(MOST_PAUSE, max(wanted, (20 if wanted == LONGEST_PAUSE else 4) * cost))


def scan() -> dict[int, Usage]:
    """Every process that this /proc shows."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stream:
                    fields = stream.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            found[int(name)] = Usage(int(fields[1]), int(fields[21]) * _PAGE)
    return found


def trees(processes: dict[int, Usage], roots: list[int]) -> dict[int, list[int]]:
    """For each root process, itself and all its descendants. Orphans belong to process 1 of their namespace."""
    children = defaultdict(list)
    for process, usage in processes.items():
        children[usage.parent].append(process)
    result = {}
    for root in roots:
        members, pending = [], [root]
        while pending:
            process = pending.pop()
            members.append(process)
            pending += children[process]
        result[root] = members
    return result


def proportional(process: int) -> int:
    """Proportional set size in bytes; 0 where it cannot be read (ended, or protected as process 1 is)."""
    try:
        with open(f"/proc/{process}/smaps_rollup", "rb") as stream:
            return sum(int(line.split()[1]) << 10 for line in stream if line.startswith(b"Pss:"))
    except OSError:
        return 0


def shared() -> int:
    """The machine's memory in tmpfs, memfd and the like, in bytes."""
    with open("/proc/meminfo", "rb") as stream:
        return next((int(line.split()[1]) << 10 for line in stream if line.startswith(b"Shmem:")), 0)


def files_in_memory(processes: list[int]) -> int:
    """Bytes of the files in memory that these processes have open."""
    found = {}
    for process in processes:
        try:
            for name in os.listdir(f"/proc/{process}/fd"):
                path = f"/proc/{process}/fd/{name}"
                if os.readlink(path).startswith("/memfd:"):
                    status = os.stat(path)
                    found[status.st_ino] = status.st_blocks * 512
        except OSError:
            continue  # it has ended, or is process 1
    return sum(found.values())


def look(bounds: dict[int, Bounds]) -> Look:
    """Compare the trees below some root processes with what each may use."""
    processes = scan()
    in_files = shared()
    over, headroom = {}, LONGEST_PAUSE * FASTEST_GROWTH
    for root, members in trees(processes, list(bounds)).items():
        used = sum(processes[member].resident for member in members if member in processes)
        if used > bounds[root].memory:
            used = sum(map(proportional, members))
        if in_files > bounds[root].memory // 2:
            used += files_in_memory(members)
        if used > bounds[root].memory:
            over[root] = "memory"
        elif len(members) > _PROCESSES_FACTOR * bounds[root].processes:
            over[root] = "processes"
        else:
            headroom = min(headroom, bounds[root].memory - used)
    return Look(over, int(headroom))
