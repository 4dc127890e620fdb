"""The floor: what the kernel itself takes to make a sandbox and to run a program in it, without the project's code.

Run as a program (standard library only) below a user, mount and pid namespace of its own, with the folder of a root
file system as argument: for every line on standard input it clones the six namespaces, makes the same mounts, changes
the root, runs ``bash -c true`` in it, and prints the milliseconds until that had ended.
"""

# ruff: noqa: PTH102, PTH103, PTH211
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_CALLS = {"x86_64": (56, 155), "aarch64": (220, 41)}  # clone, pivot_root
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_STAGE = "/sys"
_LINKS = (("pts/ptmx", "ptmx"), ("/proc/self/fd", "fd"), ("/proc/self/fd/1", "stdout"), ("/proc/self/fd/2", "stderr"))


class Floor:
    """The program of this module, running. Raises OSError where it cannot.

    Args:
        root: a folder that holds a root file system with bash.
    """

    def __init__(self, root: Path) -> None:
        users = ["--user", "--map-root-user", "--map-auto"] if os.geteuid() else []
        unshare = [shutil.which("unshare") or "unshare", *users, "--mount", "--pid", "--fork", "--mount-proc"]
        self._process = subprocess.Popen(
            [*unshare, sys.executable, "-I", "-S", __file__, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self) -> float:
        """Milliseconds of one round."""
        print("go", file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise OSError("the floor could not be measured")
        return float(answer)

    def close(self) -> None:
        """End the program."""
        self._process.communicate()


def main() -> None:
    """Serve until standard input closes."""
    root = sys.argv[1]
    libc = ctypes.CDLL(None, use_errno=True)
    holding_lock = ctypes.PyDLL(None, use_errno=True)
    clone, pivot_root = _CALLS[os.uname().machine]

    def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
        words = [None if word is None else word.encode() for word in (source, target, kind)]
        if libc.mount(*words, ctypes.c_ulong(flags), options.encode()) < 0:
            raise OSError(ctypes.get_errno(), f"mount on {target}")

    def become() -> None:
        scratch = f"{_STAGE}/scratch"
        mount("tmpfs", scratch, "tmpfs", 6, "size=1073741824,mode=755")
        for name in ("upper", "work", "root"):
            os.mkdir(f"{scratch}/{name}")
        new = f"{scratch}/root"
        mount(
            "overlay", new, "overlay", 4, f"lowerdir={root},upperdir={scratch}/upper,workdir={scratch}/work,userxattr"
        )
        for name in ("proc", "dev", "sys"):
            os.makedirs(f"{new}/{name}", exist_ok=True)
        mount("proc", f"{new}/proc", "proc", 14)
        mount("tmpfs", f"{new}/dev", "tmpfs", 2, "size=1m,mode=755")
        for name in _NODES:
            os.close(os.open(f"{new}/dev/{name}", os.O_CREAT | os.O_WRONLY))
            mount(f"/dev/{name}", f"{new}/dev/{name}", None, 4096)
        for name in ("shm", "pts"):
            os.mkdir(f"{new}/dev/{name}")
        mount("tmpfs", f"{new}/dev/shm", "tmpfs", 6, "size=64m,mode=1777")
        mount("devpts", f"{new}/dev/pts", "devpts", 10, "newinstance,ptmxmode=0666,mode=620")
        for target, name in _LINKS:
            os.symlink(target, f"{new}/dev/{name}")
        os.chdir(new)
        if libc.syscall(pivot_root, b".", b".") or libc.umount2(b".", 2):
            raise OSError(ctypes.get_errno(), "pivot_root")
        os.chdir("/")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            fcntl.ioctl(handle, 0x8914, struct.pack("16sh14x", b"lo", 73))

    libc.mount(b"none", b"/", None, ctypes.c_ulong(16384 | (1 << 18)), None)
    mount("tmpfs", _STAGE, "tmpfs", 6, "size=1m,mode=755")
    os.mkdir(f"{_STAGE}/scratch")
    maps = {
        kind: "".join(
            f"{line.split()[0]} {line.split()[0]} {line.split()[2]}\n"
            for line in Path(f"/proc/self/{kind}_map").read_text().splitlines()
        )
        for kind in ("uid", "gid")
    }
    for _ in sys.stdin:
        begun = time.perf_counter()
        read, write = os.pipe()
        process = holding_lock.syscall(clone, ctypes.c_ulong(_NAMESPACES | signal.SIGCHLD), *[ctypes.c_ulong(0)] * 4)
        if process == 0:
            try:
                os.read(read, 1)
                become()
                child = os.posix_spawn("/bin/bash", ["bash", "-c", "true"], {})
                os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            except OSError as error:
                print(error, file=sys.stderr)
                os._exit(1)
        for kind, text in maps.items():
            Path(f"/proc/{process}/{kind}_map").write_text(text)
        os.write(write, b"g")
        _, status = os.waitpid(process, 0)
        if status:
            return
        print((time.perf_counter() - begun) * 1000, flush=True)
        os.close(read)
        os.close(write)


if __name__ == "__main__":
    main()
