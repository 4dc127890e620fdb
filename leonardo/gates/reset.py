"""The gate ``reset``: after an episode that did its worst, a reset shows the prepared state, bit for bit.

Compared are the file tree, entry by entry (kind, mode, owner, size, time, content, link target, extended attributes),
and what a tree does not show: processes, ports, mounts, shared memory, queues, the host's name, and that there is room.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from difflib import unified_diff

from leonardo.errors import InfrastructureError
from leonardo.sandbox.backend import ExecutionResult, SandboxBackend, SandboxOOMError
from leonardo.sandbox.driver import Driver, LayerStack, Limits

LIMITS = Limits(disk=32 << 20)
"""Small, so that a full disk is had at once."""

PORT = 8453

# What listens is any of the interpreters that an image may have; none is needed.
LISTENER = f"""
listen() {{
  python3 -c 'import socket, time
s = socket.create_server(("", {PORT})); time.sleep(1000)' || perl -e '
socket(S, 2, 1, 0) && bind(S, pack("S n a4 x8", 2, {PORT}, "\\0\\0\\0\\0")) && listen(S, 1) && sleep 1000' ||
  nc -lk -p {PORT}
}}
listen > /dev/null 2>&1 & disown
for try in 1 2 3 4 5 6 7 8 9 10; do
  (exec 3<> /dev/tcp/127.0.0.1/{PORT}) 2> /dev/null && {{ echo listens; break; }}
  sleep 0.1
done
"""

# Beside the tree: what processes hold. By the shell alone, since images differ.
_HELD = f"""{LISTENER}
(trap '' TERM HUP; exec -a hostile sleep 1000) & disown
echo x > /dev/shm/hostile && echo memory
echo hostile > /proc/sys/kernel/hostname
mkdir -p /mnt/hostile && mount -t tmpfs none /mnt/hostile && echo mount
umask 000; ulimit -n 16
"""

# What an episode may do to its world at worst, with tools that images have; the rest is done by file transfer.
_DESTRUCTION = """
sleep 1000 & disown
chmod -R 000 /home /opt /srv; chown -R 12345:12345 /home
mkdir -p /opt/new /etc/new; echo x > /opt/new/x; ln -sf /etc/passwd /opt/new/link
rm -rf /var/lib /usr/share /usr/lib/python3* /home/* /root /tmp
touch -d @1 / /etc /usr; mv /etc /etc.moved
rm -rf /usr/bin /bin /usr/lib
"""

# a file that grows until there is no room, by the shell alone, for by now there is nothing else
_FILLER = "x=$(printf '%*s' 1000000 ''); while printf %s \"$x\"; do :; done > /hostile-filler 2> /dev/null; echo full"

_PROBE = """
shopt -s nullglob dotglob
for each in /proc/[0-9]*; do read -r name < $each/comm && echo "process $name"; done 2> /dev/null
for table in tcp tcp6 udp udp6; do
  while read -r number address remote state rest; do
    [[ $state == 0A || ( $table == udp* && $state == 07 ) ]] && echo "port $table $address"
  done < /proc/net/$table
done 2> /dev/null
while read -r number parent device root place rest; do echo "mount $place"; done < /proc/self/mountinfo
for each in /dev/shm/* /dev/mqueue/*; do echo "memory $each"; done
for table in /proc/sysvipc/*; do while read -r key rest; do echo "queue $table $key"; done < $table; done 2> /dev/null
read -r name < /proc/sys/kernel/hostname; echo "name $name"
echo "mask $(umask)"; echo "files $(ulimit -n)"
printf '%*s' 4000000 '' > /.room && echo room
"""


@dataclass(frozen=True)
class Snapshot:
    """What a sandbox is: its file tree as text, and how often it has each of the other things."""

    tree: str
    held: Counter[str]


@dataclass(frozen=True)
class ResetFinding:
    """Whether a reset restored the state (``difference`` says what it did not), and what the episode had done."""

    difference: str
    did: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """No difference was found."""
        return not self.difference


def check_reset(driver: Driver, stack: LayerStack) -> ResetFinding:
    """Look at a fresh sandbox, do the worst in it, reset it, look again."""
    backend = driver.backend(stack, limits=LIMITS)
    try:
        backend.start()
        first = snapshot(backend)
        backend.start()  # what the look itself wrote is gone
        did = hostile_episode(backend)
        backend.start()
        return ResetFinding(difference(first, snapshot(backend)), tuple(did))
    finally:
        backend.close()


def snapshot(backend: SandboxBackend) -> Snapshot:
    """What a started sandbox is. It is not fresh any more then."""
    tree = tree_of(backend)
    result = backend.run_command(_PROBE, timeout=60)
    return Snapshot(tree, Counter(result.stdout.splitlines()))


def tree_of(backend: SandboxBackend) -> str:
    """The file tree of a started sandbox. Raises InfrastructureError where the driver cannot tell."""
    listing = getattr(backend, "listing", None)
    if listing is None:
        raise InfrastructureError("this driver's sandboxes cannot list their file tree", "Use another driver")
    return listing()


def difference(first: Snapshot, second: Snapshot) -> str:
    """What is not the same, in a line; ``""`` where all is."""
    if first.tree != second.tree:
        lines = unified_diff(first.tree.splitlines(), second.tree.splitlines(), lineterm="", n=0)
        changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        return f"{len(changed)} lines, such as {' / '.join(changed[:2])}"[:400]
    changed = [f"+{word}" for word in second.held - first.held] + [f"-{word}" for word in first.held - second.held]
    if changed:
        return f"{len(changed)} things beside the files, such as {', '.join(changed[:4])}"[:400]
    return "" if "room" in second.held else "there is no room to write"


def hostile_episode(backend: SandboxBackend) -> list[str]:
    """Hold ports, processes and memory, destroy the files, fill the disk. Returns what it came to, as words."""
    did = []
    with suppress(SandboxOOMError):  # a driver may end what goes over a limit
        did += backend.run_command(_HELD, timeout=60).stdout.split()
        did += destroy(backend, then=f"[[ -e /usr/bin ]] || echo destroyed; {_FILLER}").stdout.split()
    return did


def destroy(backend: SandboxBackend, then: str = "") -> ExecutionResult:
    """Destroy the files of a running sandbox, fewer where there is no room; then run ``then`` in what is left."""
    with suppress(RuntimeError):
        backend.write_file("/etc/passwd", "gone\n")
        backend.write_file("/made/by/the/episode", b"\0" * 65536)
    return backend.run_command(f"{_DESTRUCTION}\n{then}", timeout=120)
