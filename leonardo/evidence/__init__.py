"""The ledger: all evidence, one JSON object a line, only ever appended to. Format and promises: docs/ladder.md."""

from leonardo.evidence.audit import Check, Fault, check, require_whole
from leonardo.evidence.entry import Evidence, Judged, RecordFile, record_files
from leonardo.evidence.ledger import LEDGER, append, read

__all__ = [
    "LEDGER",
    "Check",
    "Evidence",
    "Fault",
    "Judged",
    "RecordFile",
    "append",
    "check",
    "read",
    "record_files",
    "require_whole",
]
