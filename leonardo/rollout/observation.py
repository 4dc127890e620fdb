"""What the policy sees of a command: its output, head and tail of it where it is long, and the exit code."""

from dataclasses import dataclass

from leonardo.sandbox.backend import ExecutionResult


@dataclass(frozen=True)
class ObservationRules:
    """How much of a command's output is shown, in characters. The defaults are upstream's."""

    limit: int = 10_000
    head: int = 5_000
    tail: int = 5_000

    def __post_init__(self) -> None:
        if self.head < 0 or self.tail < 0 or self.head + self.tail > self.limit:
            raise ValueError(f"head {self.head} and tail {self.tail} do not fit into {self.limit} characters")

    def truncate(self, output: str) -> str:
        """``output``, or its head and tail with a line between that says how much is left out."""
        if len(output) <= self.limit:
            return output
        left_out = len(output) - self.head - self.tail
        tail = output[len(output) - self.tail :]
        return f"{output[: self.head]}\n[output too long: {left_out} characters left out]\n{tail}"

    def render(self, result: ExecutionResult) -> str:
        """The observation of a command: stdout, then stderr, then the exit code on a line of its own."""
        return f"{self.truncate(joined(result)) or '(no output)'}\n\n(exit_code={result.exit_code})"


def joined(result: ExecutionResult) -> str:
    """stdout, and stderr behind it where there is any."""
    return "\n".join(part for part in (result.stdout, result.stderr) if part)
