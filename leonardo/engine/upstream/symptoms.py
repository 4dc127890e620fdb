"""Why a trainer's run failed: the class of what its log says, best guess first.

A list of symptoms, not of causes: the log stays, and the line that matched is part of the reason.
"""

import re
import signal
from pathlib import Path

from leonardo.errors import FailureClass

_TAIL = 400_000
"""Bytes of the log's end that are looked through."""

_SYMPTOMS: tuple[tuple[str, str], ...] = (
    (r"No space left on device|Disk quota exceeded", FailureClass.SPACE.value),
    (r"EngineDeadError|EngineCore (?:died|failed)|Engine core .* (?:died|failed)", "engine-lost"),
    (r"ActorDiedError|ActorUnavailableError|The actor died unexpectedly", "actor-lost"),
    (r"CUDA out of memory|torch\.OutOfMemoryError|OutOfMemoryError|oom-kill", "out-of-memory"),
    (r"LocalEntryNotFoundError|OfflineModeIsEnabled|couldn't connect to", FailureClass.MIRROR.value),
    (r"NCCL error|ncclSystemError|ncclUnhandledCudaError", "collective"),
    (r"InfrastructureError", FailureClass.RUNTIME.value),
    (r"error: (?:unrecognized arguments|argument )|ValueError: ", "settings"),
)

_ERROR = re.compile(r"^\s*(?:\(.*?\)\s*)?(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)\b.*$", re.MULTILINE)


def classify(log: Path, exit_code: int) -> str:
    """``class: line``, of the log of a run that ended with ``exit_code`` (not 0)."""
    text = _end_of(log)
    for pattern, name in _SYMPTOMS:
        if found := re.search(rf"^.*(?:{pattern}).*$", text, re.MULTILINE):
            return f"{name}: {_short(found[0])}"
    if exit_code > 128:
        try:
            name = signal.Signals(exit_code - 128).name
        except ValueError:
            name = str(exit_code - 128)
        return f"signal: the trainer was ended by {name}"
    errors = _ERROR.findall(text)
    return f"trainer: {_short(errors[-1]) if errors else f'exit code {exit_code}, see {log}'}"


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL))
            return stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _short(line: str) -> str:
    return " ".join(line.split())[:300]
