"""A small root file system made of the host's own programs, so that tests need neither network nor registry."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

_PROGRAM_NAMES = """
    bash sh cat chgrp chmod chown cp cut date dd df dirname env false find grep gzip head hostname id ln ls md5sum
    mkdir mkfifo mktemp mv nohup nproc printf readlink rm rmdir sed seq setsid sha256sum sleep sort stat tail tar
    tee timeout touch tr true truncate umount uname uniq wc xargs yes
"""
PROGRAMS = tuple(_PROGRAM_NAMES.split())
OPTIONAL_PROGRAMS = ("gawk", "mawk", "perl", "mknod", "mount", "pkill", "stty", "su", "tty", "unshare")
FOLDERS = {"etc": 0o755, "root": 0o700, "tmp": 0o1777, "var": 0o755, "home": 0o755, "workspace": 0o755, "logs": 0o755}
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33:www-data:/var/www:/bin/sh\n",
    "etc/group": "root:x:0:\nwww-data:x:33:\n",
    "etc/base-marker": "base\n",
}
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


def build_root_archive(target: Path) -> Path:
    """Write an uncompressed tar of the root file system to ``target``; every owner is 0 and every time is fixed."""
    programs = {name: Path(path) for name in PROGRAMS if (path := _find(name))}
    programs |= {name: Path(path) for name in OPTIONAL_PROGRAMS if (path := _find(name))}
    missing = {"bash", "sh", "cat"} - programs.keys()
    if missing:
        raise RuntimeError(f"the host has no {', '.join(sorted(missing))}")
    content = {f"usr/bin/{name}": path.resolve() for name, path in programs.items()}
    for program in list(content.values()):
        for library in _libraries(program):
            content[_merged(library)] = library.resolve()
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for folder in ("", "usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64"):
            _add(archive, folder or ".", tarfile.DIRTYPE, 0o755)
        for folder, mode in FOLDERS.items():
            _add(archive, folder, tarfile.DIRTYPE, mode)
        made = {"usr/bin", "usr/sbin", "usr/lib", "usr/lib64"}
        for name in sorted(content):
            for parent in reversed([str(folder) for folder in Path(name).parents][:-2]):
                if parent not in made:
                    made.add(parent)
                    _add(archive, parent, tarfile.DIRTYPE, 0o755)
            _add(archive, name, tarfile.REGTYPE, 0o755, content[name].read_bytes())
        if "mawk" in programs or "gawk" in programs:
            _add(archive, "usr/bin/awk", tarfile.SYMTYPE, 0o777, link="gawk" if "gawk" in programs else "mawk")
        for name, link in LINKS.items():
            _add(archive, name, tarfile.SYMTYPE, 0o777, link=link)
        for name, text in FILES.items():
            _add(archive, name, tarfile.REGTYPE, 0o644, text.encode())
    return target


def _add(archive: tarfile.TarFile, name: str, kind: bytes, mode: int, data: bytes = b"", link: str = "") -> None:
    entry = tarfile.TarInfo(name if name == "." else f"./{name}")
    entry.type, entry.mode, entry.size, entry.linkname, entry.mtime = kind, mode, len(data), link, 1_700_000_000
    archive.addfile(entry, io.BytesIO(data))


def _find(name: str) -> str | None:
    return shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")


def _libraries(program: Path) -> list[Path]:
    output = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    words = (line.split() for line in output.splitlines())
    return [Path(word) for line in words for word in line if word.startswith("/")]


def _merged(path: Path) -> str:
    """Where a library goes: /lib and /lib64 are links into /usr."""
    text = str(path)
    return text[1:] if text.startswith("/usr/") else f"usr{text}"
