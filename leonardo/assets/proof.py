"""Proof by doing it again: is a set-up the same twice, and is it the same whole as in layers?

A set-up that leaves something else each time is not at fault, but its prepared state cannot be made again elsewhere,
and that is recorded. A set-up whose world is another one when its packages are a layer of their own gets one layer.
"""

from dataclasses import dataclass, replace
from difflib import unified_diff

from leonardo.assets.archives import Archives
from leonardo.assets.manifest import ManifestEntry
from leonardo.assets.store import AssetStore
from leonardo.errors import InfrastructureError
from leonardo.sandbox.driver import Driver, LayerStack
from leonardo.tasks.task import Task

MOST_PATHS = 50
"""So many paths are kept of what differs."""


@dataclass(frozen=True)
class Proof:
    """What came out.

    Attributes:
        random: paths that differ when the set-up is run twice.
        changed: paths that differ between the layers and the whole, beside those.
    """

    random: tuple[str, ...]
    changed: tuple[str, ...]


def prove(store: AssetStore, driver: Driver, entry: ManifestEntry, task: Task) -> tuple[Proof, ManifestEntry]:
    """Run the set-up of a built task again, in layers and whole, and record what was found.

    Returns:
        What was found, and the task's entry from now on.

    Raises:
        InfrastructureError: a set-up that went well does not now.
    """
    record = entry.set_up
    again = _once_more(store, task, in_layers=True)
    random = set(differences(store.archives, record.delta, again.set_up.delta))
    changed: set[str] = set()
    if record.packages:
        whole = _once_more(store, task, in_layers=False)
        changed = differing(driver, store.stack(entry), store.stack(whole)) - random
        if changed:  # is it the split, or chance?
            second = _once_more(store, task, in_layers=False)
            chance = set(differences(store.archives, whole.set_up.delta, second.set_up.delta))
            random, changed = random | chance, changed - chance
        if changed:
            why = f"the split changes {len(changed)} files, such as {min(changed)}"
            record = replace(whole.set_up, key=record.key, one_layer=why)
    record = replace(record, random=tuple(sorted(random))[:MOST_PATHS])
    entry = replace(entry, set_up=record)
    store.catalogue.put_record(record, built=False)
    store.add_to_manifest([entry])
    return Proof(record.random or (), tuple(sorted(changed))), entry


def differences(archives: Archives, first: str, second: str) -> list[str]:
    """Paths of entries that two layers do not have in common."""
    if first == second:
        return []
    entries = [archives.entries(digest) if digest else {} for digest in (first, second)]
    return sorted(
        path for path in entries[0].keys() | entries[1].keys() if entries[0].get(path) != entries[1].get(path)
    )


def differing(driver: Driver, first: LayerStack, second: LayerStack) -> set[str]:
    """Paths whose entries differ between the merged views of two stacks: everything but /proc, /dev and /sys."""
    lines = [tree(driver, stack).splitlines() for stack in (first, second)]
    return {
        line[1:].split("\t")[0].lstrip("/")
        for line in unified_diff(*lines, lineterm="", n=0)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    }


def tree(driver: Driver, stack: LayerStack) -> str:
    """The file tree that a sandbox shows, an entry a line, see :mod:`leonardo.sandbox.listing`."""
    backend = driver.backend(stack)
    listing = getattr(backend, "listing", None)
    if listing is None:
        raise InfrastructureError("this driver's sandboxes cannot list their file tree", "Use another driver")
    backend.start()
    try:
        return listing()
    finally:
        backend.close()


def _once_more(store: AssetStore, task: Task, *, in_layers: bool) -> ManifestEntry:
    entry = store.again(task, in_layers=in_layers)
    if entry.failure is not None:
        raise InfrastructureError(
            f"task {task.id}: its set-up went well before and now fails: {entry.set_up.reason}", "", entry.failure
        )
    return entry
