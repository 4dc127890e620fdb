from collections.abc import Callable
from dataclasses import replace

import pytest

from leonardo.assets.collect import collect, find_garbage
from leonardo.assets.progress import BuildProgress
from leonardo.assets.store import AssetStore
from leonardo.errors import InputError
from leonardo.sandbox.driver import Driver
from leonardo.site import Site
from leonardo.tasks.task import Task

MakeTask = Callable[..., Task]
Open = Callable[[], AssetStore]


@pytest.fixture
def opened(package_site: Site, driver: Driver) -> Open:
    return lambda: AssetStore(package_site.cache / "assets", driver, package_site, timeout=20)


@pytest.fixture
def tasks(make_task: MakeTask) -> list[Task]:
    core = "apt-get install -y python3 python3-pip"
    return [
        make_task(f"{core}\necho 1 > /one", "t1"),
        make_task(f"{core}\necho 2 > /two", "t2"),
        make_task(f"{core} jq\nhead -c 400000 /dev/urandom > /large", "t3"),
    ]


def test_all_is_kept_that_tasks_stand_on(opened: Open, tasks: list[Task]) -> None:
    store = opened()
    entries = store.build(tasks)
    store.close()
    garbage = find_garbage(store)
    assert garbage.figures | {"bytes": 0} == {
        **dict.fromkeys(("layers", "bases", "records", "tasks", "unpacked", "former", "bytes"), 0),
        "layers_kept": 6,  # three tasks', two of packages, the base
    }
    assert garbage.references[entries[0].set_up.packages[0]] == 3
    assert garbage.references[entries[0].base] == 3
    collect(store)
    assert opened().build(tasks) == entries
    assert all(opened().catalogue.builds(entry.set_up.key) == 1 for entry in entries)


@pytest.mark.parametrize("text", ["junk", '{"tasks": {"x": 5}}', None])
def test_without_a_whole_manifest_nothing_goes(opened: Open, tasks: list[Task], text: str | None) -> None:
    """All would look like garbage; it is not until what has to stay was built again and the rest was put away."""
    store = opened()
    entries = store.build(tasks[:2])
    store.close()
    path = store.root / "manifest.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match="nothing is removed"):
        collect(store)
    assert all(map(store.archives.is_whole, entries[0].set_up.layers))
    again = opened()
    assert again.build(tasks[:1])[0].prepared == entries[0].prepared
    again.close()
    if text is not None:
        with pytest.raises(InputError, match=r"manifest\.json\.damaged is damaged"):
            collect(store)
        path.with_name("manifest.json.damaged").unlink()
    assert collect(store).layers.keys() == set(entries[1].set_up.layers) - set(entries[0].set_up.layers)


def test_what_is_not_asked_for_goes(opened: Open, tasks: list[Task]) -> None:
    store = opened()
    entries = store.build(tasks)
    large, jq = entries[2].set_up.layers[:2]
    store.close()
    garbage = find_garbage(store, {task.digest for task in tasks[:2]})
    assert garbage.layers.keys() == {large, jq}
    assert store.archives.is_whole(large)  # counted only
    removed = collect(store, {task.digest for task in tasks[:2]})
    assert removed.layers.keys() == {large, jq}
    assert not store.archives.path(large).exists()
    assert store.entry(tasks[2]) is None
    assert set(store.archives.stored()) == {digest for entry in entries[:2] for digest in entry.set_up.layers}
    assert opened().build(tasks[:2]) == entries[:2]
    assert opened().build(tasks)[2].prepared  # is made again


def test_what_former_stores_left(opened: Open, tasks: list[Task]) -> None:
    store = opened()
    entry = store.build(tasks[:1])[0]
    store.close()
    (store.root / "deltas").mkdir()
    store.add_to_manifest([replace(entry, task_digest="old", set_up=replace(entry.set_up, delta="1" * 64))])
    garbage = collect(store)
    assert garbage.former == ("deltas",)
    assert garbage.tasks == ("old",)
    assert not (store.root / "deltas").exists()
    assert opened().build(tasks[:1]) == [entry]


def test_layers_that_nothing_refers_to(opened: Open, tasks: list[Task]) -> None:
    store = opened()
    with store.archives.writing() as writer:
        writer.write(b"of a build that was killed")
    store.build(tasks)
    store.prepared(tasks[0])
    store.close()
    assert find_garbage(store).layers.keys() == {writer.digest}
    collect(store)
    assert writer.digest not in store.archives.stored()


def test_not_while_somebody_builds_or_has_states(opened: Open, tasks: list[Task]) -> None:
    user = opened()
    user.build(tasks)
    user.close()
    collect(opened())
    user.prepared(tasks[0])
    with pytest.raises(InputError, match="in use by a build or by episodes"):
        collect(opened(), set())
    user.close()
    with user.turn(BuildProgress()), pytest.raises(InputError, match="in use"):
        collect(opened(), set())
    user.close()
    assert collect(opened(), set()).figures["layers"] == 5


def test_an_unpacked_layer_in_use_stays_with_its_archive(opened: Open, tasks: list[Task]) -> None:
    store = opened()
    entry = store.build(tasks)[2]
    store.prepared(tasks[2])
    store.close()
    large = entry.set_up.delta
    with store.cache.using(large, lambda folder: None):
        removed = collect(opened(), set())
    assert large not in removed.layers
    assert large not in removed.unpacked
    assert store.archives.is_whole(large)
    assert large in collect(opened(), set()).layers
