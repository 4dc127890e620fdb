"""Layers as archives: GNU tar's pax format, gzipped, made and unpacked as root of a user namespace.

The neutral form of a delta, whatever the driver: a deleted file is a character device 0/0, a replaced folder has the
attribute ``user.overlay.opaque``, and what the kernel's overlay notes for itself is left out. Owners are numbers, times
have nanoseconds, hard links, pipes, holes, capabilities and ``user.`` attributes are kept. Entries are sorted and times
of the archive itself are left out, so the same layer gives the same bytes.

Access control lists are kept, too. GNU tar writes the names of their users where it finds any, also when it is asked
for numbers: whoever packs calls :func:`leonardo.sandbox.mounts.hide_accounts` first.
"""

TAR = "tar"
COMPRESS = "gzip -n -1"  # gzip is on every host, and its output has no time or name in it

_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOOL_ENVIRONMENT = {"PATH": _SEARCH_PATH, "LC_ALL": "C", "TZ": "UTC"}

_ATTRIBUTES = ["--xattrs", "--xattrs-include=user.*", "--xattrs-include=security.capability"]
_OVERLAY_NOTES = [
    f"--xattrs-exclude=user.overlay.{name}"
    for name in ("origin", "impure", "uuid", "nlink", "upper", "redirect", "metacopy", "protattr")
] + ["--xattrs-exclude=user.fuseoverlayfs.*"]
_DECOMPRESSORS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}


def pack_command(folder: str) -> list[str]:
    """Write ``folder`` as an archive to standard output."""
    return [
        *[TAR, "--create", "--file=-", f"--use-compress-program={COMPRESS}", f"--directory={folder}"],
        *["--format=pax", "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime"],
        *["--sort=name", "--numeric-owner", "--sparse", "--acls", *_ATTRIBUTES, *_OVERLAY_NOTES, "."],
    ]


def unpack_command(folder: str, start: bytes, *, keep_owners: bool) -> list[str]:
    """Extract the archive on standard input, whose first bytes are ``start``, into ``folder``.

    Nodes in /dev are left out: they cannot be made in a user namespace, and a sandbox has its own. Where owners are not
    kept, access control lists, which name them, are not either.
    """
    program = next((name for magic, name in _DECOMPRESSORS.items() if start.startswith(magic)), None)
    return [
        *[TAR, "--extract", "--file=-", *([f"--use-compress-program={program}"] if program else [])],
        *[f"--directory={folder}", "--numeric-owner", "--preserve-permissions"],
        *(["--same-owner", "--acls"] if keep_owners else ["--no-same-owner"]),
        "--delay-directory-restore",
        *["--anchored", "--exclude=./dev/*", "--exclude=dev/*", *_ATTRIBUTES],
    ]


def remove_command(folder: str) -> list[str]:
    """Remove everything in ``folder``, but not the folder."""
    return ["find", folder, "-xdev", "-mindepth", "1", "-delete"]
