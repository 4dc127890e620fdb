"""What a build tells while it runs."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from leonardo.assets.manifest import ManifestEntry


class BuildProgress:
    """Tells nothing. The methods are called from the thread that called ``build``."""

    def start(self, total: int, what: str = "prepared states") -> None:
        """A part of the work begins that has ``total`` steps."""

    def advance(self) -> None:
        """One more step is done."""

    def note(self, text: str) -> None:
        """Something that takes a while begins, or did not work."""

    def done(self, entry: ManifestEntry) -> None:
        """A task's prepared state is there, or has failed; a step, too."""


class ConsoleProgress(BuildProgress):
    """A bar on a terminal, elsewhere a plain line for every tenth of the work. A context manager.

    Args:
        console: where it is shown.
        failures: whether it names what failed, each reason once: a base image may fail for thousands of tasks. Else
            the command does, at its end.
    """

    def __init__(self, console: Console, *, failures: bool = True) -> None:
        self._console = console
        self._failures = failures
        self._told: set[str] = set()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("base images", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start(self, total: int, what: str = "prepared states") -> None:
        self._bar.reset(self._task, total=total, description=what)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def advance(self) -> None:
        self._bar.advance(self._task)
        task = self._bar.tasks[0]
        total = int(task.total or 0)
        if not self._console.is_terminal and total and int(task.completed) % max(1, total // 10) == 0:
            self.note(f"{task.description}: {int(task.completed)} of {total}")

    def done(self, entry: ManifestEntry) -> None:
        self.advance()
        if entry.failure is not None and self._failures and entry.set_up.reason not in self._told:
            self._told.add(entry.set_up.reason)
            self.note(f"{entry.task_id}: {entry.failure}: {entry.set_up.reason}")


def say(console: Console, text: str) -> None:
    """Print a line as it is, however long and whatever it holds."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
