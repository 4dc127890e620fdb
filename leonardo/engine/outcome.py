"""How a training run ended, the same for both engines."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainingOutcome:
    """What an engine hands back.

    Attributes:
        policy: the trained policy's folder, for the harness that evaluates; None where no checkpoint was written.
        exit_code: of the trainer.
        reason: why it did not end well, classified, in a line; "" where it did.
        leftovers: processes that were there after it had ended (they were ended then).
        seconds: from start to end.
    """

    policy: Path | None
    exit_code: int
    reason: str = ""
    leftovers: tuple[str, ...] = ()
    seconds: float = 0.0
