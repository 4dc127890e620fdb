"""What a sandbox uses of the machine's memory, read from /proc by the holder, which sees every process below it.

Resident sizes count shared pages once a process, so their sum is too high at worst; only where it exceeds the limit is
the proportional size (slow to get) asked for.
"""

import os
from collections import defaultdict
from dataclasses import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    """One process: its parent and its resident set in bytes."""

    parent: int
    resident: int


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


def over_limit(limits: dict[int, int]) -> list[int]:
    """The root processes (of ``limits``: root process -> bytes) whose trees use more memory than they may."""
    processes = scan()
    found = []
    for root, members in trees(processes, list(limits)).items():
        resident = sum(processes[member].resident for member in members if member in processes)
        if resident > limits[root] and sum(map(proportional, members)) > limits[root]:
            found.append(root)
    return found
