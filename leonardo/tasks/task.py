"""A task: one row of the data set, whichever of its two shapes it came in."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath

from leonardo.files import digest_of, sha256_bytes


@dataclass(frozen=True)
class Task:
    """One row: what the agent is told, how its world is made, and how the final state is judged.

    Attributes:
        id: unique in its data set; letters, digits, ``.``, ``_`` and ``-`` only (it names folders).
        instruction: the text the agent is given.
        definition: an Apptainer definition file (the row's ``container_def``), or ``""`` if the row has only an image.
        tests: path relative to ``/tests`` -> content; always holds ``test.sh``, which writes 0 or 1 to
            ``/logs/verifier/reward.txt``.
        seeds: path relative to ``/workspace`` -> content, put there at reset (the converted form's environment/seeds).
        image: the image that the row names (converted form), or ``""``.
        kind: family or kind, for tables; ``""`` if the row has none.
        reference_solution: shell script that makes the verifier pass when run as root after the set-up, or ``None``.
        initial_tests: like ``tests``, what holds before anything is done; empty if the row has none.
    """

    id: str
    instruction: str
    definition: str
    tests: dict[str, bytes]
    seeds: dict[str, bytes] = field(default_factory=dict)
    image: str = ""
    kind: str = ""
    reference_solution: str | None = None
    initial_tests: dict[str, bytes] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Hex SHA-256 over everything that decides what the agent sees and how it is judged."""
        files = {
            f"{folder}/{PurePosixPath(name)}": sha256_bytes(content)
            for folder, entries in (("tests", self.tests), ("seeds", self.seeds))
            for name, content in entries.items()
        }
        return digest_of([self.id, self.instruction, self.definition, self.image, files])
