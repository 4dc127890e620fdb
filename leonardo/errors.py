"""The two families of failure, kept apart by type.

An :class:`InputError` is the person's to mend (a row, a file, a setting). An :class:`InfrastructureError` is the
machine's (sandbox, image, network, disk); it is retried, excluded from its group and counted, and is never a reward.
A task failure is neither: it is the verifier's 0 and no exception at all.
"""

from collections.abc import Sequence

from leonardo.taxonomy import FailureClass, FailureFamily

__all__ = ["FailureClass", "FailureFamily", "InfrastructureError", "InputError", "LeonardoError", "NotFiniteError"]


class LeonardoError(Exception):
    """Base of all errors that are shown as one line.

    Args:
        what: what was wrong and where, in one line.
        hint: what to do about it, in one line; shown after ``what``.
    """

    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}. {self.hint}" if self.hint else self.what


class InputError(LeonardoError):
    """A file, row or setting that cannot be used as it is."""

    exit_code = 2


class InfrastructureError(LeonardoError):
    """The sandbox, image, scheduler or network failed. Never a reward."""

    exit_code = 3

    def __init__(self, what: str, hint: str = "", failure: FailureClass = FailureClass.RUNTIME) -> None:
        super().__init__(what, hint)
        self.failure = failure


class NotFiniteError(LeonardoError):
    """A loss, gradient or weight is no finite number: training ends at once.

    Attributes:
        step: of the learner.
        tensors: what was not finite: ``loss``, or a parameter's name with the part.
    """

    def __init__(self, step: int, tensors: Sequence[str], hint: str = "") -> None:
        super().__init__(f"step {step}: not finite: {', '.join(tensors[:5])}", hint)
        self.step = step
        self.tensors = tuple(tensors)
