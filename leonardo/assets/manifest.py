"""What was built of what: one entry a task, the record of its set-up, and the file that holds them."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leonardo.errors import FailureClass
from leonardo.files import digest_of, write_json


@dataclass(frozen=True)
class SetUpRecord:
    """How a set-up went; shared by all tasks with the same script, environment and base.

    Attributes:
        key: digest over what decides the outcome: script, environment, base, recipe version.
        delta: hex SHA-256 of the layer of its own; ``""`` where there is nothing but packages, or the set-up failed.
        packages: the package layers below it, lowest first.
        compressed_bytes, unpacked_bytes, entries: size of ``delta``.
        seconds: duration of the set-up, without that of package layers.
        own: its files that sandboxes get in their writable layer, see :mod:`leonardo.sandbox.ownfiles`.
        log: names its output, see :meth:`leonardo.assets.store.AssetStore.log`; ``""`` where it was not run.
        failure: class of its failure, ``None`` where it went well.
        reason: one line on the failure.
        rules: compat rules that applied, ``id@version`` (see :mod:`leonardo.assets.compat`).
        one_layer: why its packages are part of ``delta``, ``""`` where they are not, or it has none.
        keeps_times: times of its files are those of the run, see :mod:`leonardo.assets.normal`.
        random: what came out otherwise when it was run once more, by path; ``None`` where it was not run twice.
    """

    key: str
    delta: str = ""
    compressed_bytes: int = 0
    unpacked_bytes: int = 0
    entries: int = 0
    seconds: float = 0.0
    own: tuple[str, ...] = ()
    log: str = ""
    failure: FailureClass | None = None
    reason: str = ""
    rules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    one_layer: str = ""
    keeps_times: bool = False
    random: tuple[str, ...] | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """Its layers, uppermost first."""
        return (*((self.delta,) if self.delta else ()), *reversed(self.packages))

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "SetUpRecord":
        """The record that ``asdict`` was written of. Raises TypeError, ValueError where it is none."""
        if not isinstance(values, dict):
            raise TypeError("a record is an object")
        failure, random = values.get("failure"), values.get("random")
        return cls(
            **values
            | {
                "own": tuple(values.get("own", ())),
                "rules": tuple(values.get("rules", ())),
                "packages": tuple(values.get("packages", ())),
                "random": None if random is None else tuple(random),
                "failure": FailureClass(failure) if failure else None,
            }
        )


@dataclass(frozen=True)
class ManifestEntry:
    """What stands for a task: its base and delta, or why there is none."""

    task_id: str
    task_digest: str
    image: str
    set_up: SetUpRecord
    base: str = ""
    """Digest of the base archive."""
    substitution: str = ""
    """What stands in for the image, and why; ``""`` where nothing does."""
    registry_failure: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    pins: dict[str, Any] = field(default_factory=dict)

    @property
    def failure(self) -> FailureClass | None:
        """Class of what kept the prepared state from being built."""
        return self.set_up.failure

    @property
    def prepared(self) -> str:
        """Digest that names the prepared state, ``""`` where there is none."""
        if self.failure is not None or not self.base:
            return ""
        return digest_of([self.base, self.set_up.layers, self.environment])


def manifest_digest(entries: Iterable[ManifestEntry]) -> str:
    """Names what a selection of tasks was built into; the pin that a run records."""
    return digest_of(sorted([entry.task_id, entry.task_digest, entry.prepared] for entry in entries))


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of a manifest file, by task digest; none where there is no such file, or not any more."""
    return _entries(path) or {}


def damaged_manifest(path: Path) -> Path | None:
    """The file that is no manifest any more, or what a build put aside of it; None where neither is there.

    What it referred to is no garbage.
    """
    if path.exists() and _entries(path) is None:
        return path
    return _aside(path) if _aside(path).exists() else None


def update_manifest(path: Path, entries: Iterable[ManifestEntry]) -> None:
    """Put ``entries`` into the manifest file, in the place of older entries of the same tasks.

    One that is damaged is put aside: a manifest without its tasks must not look like all that there is.
    """
    known = read_manifest(path)
    if damaged_manifest(path) == path:
        path.replace(_aside(path))
    for entry in entries:
        known[entry.task_digest] = asdict(entry) | {"prepared": entry.prepared}
    write_json(path, {"tasks": known})


def _entries(path: Path) -> dict[str, dict[str, Any]] | None:
    """None where it holds none."""
    try:
        tasks = json.loads(path.read_text())["tasks"]
        whole = all({"image", "base"} <= entry.keys() and "key" in entry["set_up"] for entry in tasks.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return dict(tasks) if whole else None


def _aside(path: Path) -> Path:
    return path.with_suffix(f"{path.suffix}.damaged")
