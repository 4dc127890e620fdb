"""What a sandbox must be able to do, tried inside one by its process 1, with nothing needed from an image."""

import os
import socket
import stat
from collections.abc import Callable

from leonardo.sandbox import mounts

FOLDER = "/self-test"
"""In the lower layer: a file ``deleted`` and a folder ``replaced`` with a file ``old``."""


def make_layer(folder: str) -> None:
    """Fill a layer for :func:`check_root`."""
    os.makedirs(f"{folder}{FOLDER}/replaced")
    for name in ("deleted", "replaced/old"):
        with open(f"{folder}{FOLDER}/{name}", "w", encoding="utf-8") as stream:
            stream.write("below\n")


def check_root() -> dict[str, str]:
    """Name of a check -> what went wrong, or ``""``."""
    checks = {"chown": _chown, "whiteout": _whiteout, "opaque": _opaque, "loopback": _loopback, "proc": _proc}
    return {name: _complaint(check) for name, check in checks.items()}


def _complaint(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception as error:  # noqa: BLE001 - any failure is the answer
        return str(error) or type(error).__name__
    return ""


def _require(fact: bool, complaint: str) -> None:
    if not fact:
        raise RuntimeError(complaint)


def _chown() -> None:
    path = f"{FOLDER}/owned"
    with open(path, "w", encoding="utf-8"):
        pass
    os.chown(path, 33, 33)
    _require(os.stat(path).st_uid == 33, "the owner did not change")


def _whiteout() -> None:
    os.unlink(f"{FOLDER}/deleted")
    _require("deleted" not in os.listdir(FOLDER), "a deleted file is still there")


def _opaque() -> None:
    folder = f"{FOLDER}/replaced"
    os.unlink(f"{folder}/old")
    os.rmdir(folder)
    os.mkdir(folder)
    _require(stat.S_ISDIR(os.stat(folder).st_mode) and not os.listdir(folder), "a replaced folder shows old files")


def _loopback() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.settimeout(2)
        client.connect(server.getsockname())


def _proc() -> None:
    _require(os.readlink("/proc/self") == "1", "/proc is not that of the sandbox")
    _require(not os.path.exists(f"{mounts.LAYERS}"), "the holder's files are visible")
