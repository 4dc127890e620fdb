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
_SPACE = re.compile(r"No space left on device|Disk quota exceeded|You don't have enough free space", re.IGNORECASE)
_PRIVILEGE = re.compile(r"Operation not permitted|must be superuser|requires? (?:root|CAP_\w+)", re.IGNORECASE)


def classify(result: SetUpResult, timeout: float) -> tuple[FailureClass, str] | None:
    """Class and reason of a failed set-up; ``None`` where it did not fail.

    A script that exits 0 although packages could not be fetched has failed too: ``apt-get update && apt-get install``
    does not end a script under ``-e``, and what is missing would only show as a broken verifier.
    """
    last = _last_lines(result.log)
    if result.timed_out:
        return FailureClass.SET_UP_TIMEOUT, f"not finished after {timeout:.0f} s; last line: {last or 'none'}"
    if result.disk_full or (result.exit_code != 0 and _SPACE.search(result.log)):
        return FailureClass.SPACE, f"the disk of the set-up is full; last line: {last or 'none'}"
    if result.exit_code == 0:
        missed = _PACKAGES_MISSED.search(result.log)
        if missed is None or not _MIRROR.search(result.log):
            return None
        return FailureClass.MIRROR, f"it went on without its packages: {_line_at(result.log, missed.start())}"
    if match := _MIRROR.search(result.log):
        return FailureClass.MIRROR, f"exit code {result.exit_code}: {_line_at(result.log, match.start())}"
    if _PRIVILEGE.search("\n".join(result.log.splitlines()[-5:])):
        return FailureClass.PRIVILEGE, f"exit code {result.exit_code}: {last}"
    return FailureClass.SET_UP, f"exit code {result.exit_code}: {last or 'no output'}"


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
