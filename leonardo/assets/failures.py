"""Why a set-up failed: its class and one line, from how it ended and what it wrote."""

import re

from leonardo.errors import FailureClass
from leonardo.sandbox.driver import SetUpResult

# Words of apt, pip, curl, wget and git for a network or mirror that does not answer.
_MIRROR = re.compile(
    r"Temporary failure (?:in name resolution|resolving)|Could not resolve|unable to resolve host|"
    r"Failed to fetch|Unable to connect to|Could not connect to|Connection (?:timed out|refused|reset by peer)|"
    r"Hash Sum mismatch|is not valid yet|Network is unreachable|NewConnectionError|Max retries exceeded|"
    r"ReadTimeoutError|ConnectTimeoutError|ProxyError|SSLError|No route to host|"
    r"5\d\d +(?:Bad Gateway|Service Unavailable)",
    re.IGNORECASE,
)
# What apt says where it could not get packages; worth nothing after a script that goes on regardless.
_PACKAGES_MISSED = re.compile(r"^(?:[EW]: Failed to fetch|Err:\d+ |E: Unable to fetch some archives)", re.MULTILINE)
_SPACE = re.compile(
    r"No space left on device|Disk quota exceeded|You don't have enough free space|"
    r"used more than its \d+ MiB of memory|MemoryError|Cannot allocate memory",
    re.IGNORECASE,
)
# The classes below are told by the last lines, where a script says what ended it.
_LAST_LINES = 5
_PORT = re.compile(
    r"Address (?:already|is already) in use|bind\(\) to \S+ failed|port \d+ is (?:already )?(?:in use|allocated)",
    re.IGNORECASE,
)
_SERVICE = re.compile(
    r"systemctl: (?:command )?not found|booted with systemd|Failed to connect to bus|no systemd runs here|"
    r"unrecognized service|service: (?:command )?not found|Failed to (?:re)?start \S+|initscript \S+, action|"
    r"could not connect to server|is the server running|connect to (?:local )?(?:MySQL|Redis|PostgreSQL)|"
    r"(?:connect to|connection to \S*) *(?:server at )?[\"']?(?:localhost|127\.0\.0\.1|::1)\b.*"
    r"(?:refused|failed|error|after)|"
    r"\bfail(?:ed)?!$",
    re.IGNORECASE | re.MULTILINE,
)
_KERNEL = re.compile(
    r"Function not implemented|Operation not supported|Protocol not (?:supported|available)|"
    r"Address family not supported|not supported by (?:the|this|your) kernel|"
    r"unknown filesystem type|Inappropriate ioctl",
    re.IGNORECASE,
)
_PRIVILEGE = re.compile(
    r"Operation not permitted|must be superuser|requires? (?:root|CAP_\w+)|permission denied on key|"
    r"mount: .*(?:permission denied|failed)|/(?:proc|sys)/\S+: Read-only file system|"
    r"(?:changing (?:ownership|group)|setgroups|setres?[ug]id|sete?[ug]id|cannot set groups|setfacl).*Invalid argument",
    re.IGNORECASE,
)
# A name that is looked up, or a host that is tried, where there is no network at all.
_NO_NETWORK = re.compile(
    r"Temporary failure (?:in name resolution|resolving)|Could not resolve|unable to resolve host address|"
    r"Name or service not known|Network is unreachable|No route to host|getaddrinfo failed|NameResolutionError|"
    r"Failed to resolve|Unable to locate package|No matching distribution found",
    re.IGNORECASE,
)


def classify(result: SetUpResult, timeout: float) -> tuple[FailureClass, str] | None:
    """Class and reason of a failed set-up; ``None`` where it did not fail.

    A script that exits 0 although packages could not be fetched has failed too: ``apt-get update && apt-get install``
    does not end a script under ``-e``, and what is missing would only show as a broken verifier.
    """
    log, last = result.log, _last_lines(result.log)
    if result.timed_out:
        return FailureClass.SET_UP_TIMEOUT, f"not finished after {timeout:.0f} s; last line: {last or 'none'}"
    if result.disk_full or (result.exit_code != 0 and _SPACE.search(log)):
        what = "memory" if "of memory" in last else "disk"
        return FailureClass.SPACE, f"the {what} of the set-up is full; last line: {last or 'none'}"
    if result.exit_code == 0:
        missed = _PACKAGES_MISSED.search(log)
        if missed is None or not _MIRROR.search(log):
            return None
        return FailureClass.MIRROR, f"it went on without its packages: {_line_at(log, missed.start())}"
    end = "\n".join(log.splitlines()[-_LAST_LINES:])
    tests = (
        (FailureClass.PORT, _PORT, end),
        (FailureClass.SERVICE, _SERVICE, end),
        (FailureClass.MIRROR, _MIRROR, log),
    )
    tests += ((FailureClass.KERNEL_FEATURE, _KERNEL, end), (FailureClass.PRIVILEGE, _PRIVILEGE, end))
    for failure, pattern, text in tests:
        if match := pattern.search(text):
            return failure, f"exit code {result.exit_code}: {_line_at(text, match.start())}"
    return FailureClass.SET_UP, f"exit code {result.exit_code}: {last or 'no output'}"


def classify_run(output: str) -> FailureClass | None:
    """What of the environment a script missed that failed in a sandbox, by the end of its output; ``None`` if nothing.

    For reference solutions and verifiers, of which more is known than of an agent's commands.
    """
    end = "\n".join(output.splitlines()[-_LAST_LINES:])
    for failure, pattern, text in (
        (FailureClass.SPACE, _SPACE, end),
        (FailureClass.NETWORK, _NO_NETWORK, output),
        (FailureClass.PORT, _PORT, end),
        (FailureClass.SERVICE, _SERVICE, end),
        (FailureClass.KERNEL_FEATURE, _KERNEL, end),
        (FailureClass.PRIVILEGE, _PRIVILEGE, end),
    ):
        if pattern.search(text):
            return failure
    return None


def without_hosts(text: str) -> str:
    """``text`` without addresses: manifests and reports travel, and name no mirror, resolver or account."""
    text = re.sub(r"\b[a-z][a-z0-9+.-]*://[^\s'\")]+", "(address)", text, flags=re.IGNORECASE)
    text = re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "(address)", text)
    names = r"(resolving|resolve host:?|lookup|connect to|host=)\s*(['\"]?)[\w-]+(?:\.[\w-]+)+\2"
    return re.sub(names, r"\1 (host)", text, flags=re.IGNORECASE)


def without_secrets(text: str) -> str:
    """``text`` without accounts in addresses."""
    return re.sub(r"(://)[^/\s@]+@", r"\1***@", text)


def _last_lines(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return without_hosts(lines[-1])[:200] if lines else ""


def _line_at(log: str, position: int) -> str:
    start = log.rfind("\n", 0, position) + 1
    end = log.find("\n", position)
    return without_hosts(log[start : end if end >= 0 else None].strip())[:200]
