import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from leonardo.assets.manifest import ManifestEntry, manifest_digest, read_manifest
from leonardo.assets.packages import INSIDE
from leonardo.assets.progress import BuildProgress
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InputError
from leonardo.sandbox.driver import Driver, Limits
from leonardo.sandbox.drivers import open_driver
from leonardo.site import Site
from leonardo.tasks.task import Task

MakeTask = Callable[..., Task]


def output_of(driver: Driver, store: AssetStore, task: Task, command: str) -> str:
    backend = driver.backend(store.prepared(task).stack)
    backend.start()
    try:
        return backend.run_command(command).stdout
    finally:
        backend.close()


def stray_files(root: Path) -> list[Path]:
    return [path for folder in ("layers", "bases", "making") for path in (root / folder).glob(".*")]


def test_a_prepared_state_holds_what_the_set_up_left(store: AssetStore, driver: Driver, make_task: MakeTask) -> None:
    task = make_task("echo hello > /greeting\nrm /etc/base-marker", environment="export MINE='a b'")
    (entry,) = store.build([task])
    assert entry.failure is None
    assert entry.set_up.entries >= 3
    assert entry.set_up.compressed_bytes > 0
    command = 'cat /greeting; ls /etc/base-marker 2>/dev/null; echo "$MINE $FROM_BASE"'
    assert output_of(driver, store, task, command) == "hello\na b 1\n"
    state = store.prepared(task)
    assert state.digest == entry.prepared
    assert state.name == f"prepared://{entry.prepared}"


def test_the_manifest_says_what_stands_in_for_the_base(store: AssetStore, make_task: MakeTask) -> None:
    task = make_task("true")
    (entry,) = store.build([task])
    known = read_manifest(store.root / "manifest.json")[task.digest]
    assert known["task_id"] == "t1"
    assert known["prepared"] == entry.prepared
    assert known["base"] == entry.base
    assert "a test" in entry.substitution
    assert json.dumps(known)


def test_what_is_there_is_not_built_again(store: AssetStore, make_task: MakeTask) -> None:
    tasks = [make_task(f"cat /dev/urandom | head -c 100 > /random-{n}", f"t{n}") for n in range(4)]
    first = store.build(tasks, jobs=2)
    assert [entry.prepared for entry in store.build(tasks)] == [entry.prepared for entry in first]
    assert manifest_digest(store.build(tasks[::-1])) == manifest_digest(first)


def test_a_damaged_delta_is_built_again(store: AssetStore, site: Site, make_task: MakeTask) -> None:
    task = make_task("echo a > /a")
    (entry,) = store.build([task])
    store.catalogue.put_layer(entry.set_up.delta, store.catalogue.layer(entry.set_up.delta)[:-10])
    (again,) = AssetStore(store.root, store._driver, site).build([task])
    assert again.failure is None
    assert again.prepared == entry.prepared
    assert store.archives.is_whole(again.set_up.delta)


def test_tasks_with_the_same_world_share_it(store: AssetStore, make_task: MakeTask) -> None:
    tasks = [make_task("echo a > /a", "t1"), make_task("echo a > /a", "t2", instruction="Something else.")]
    entries = store.build(tasks)
    assert entries[0].task_digest != entries[1].task_digest
    assert entries[0].prepared == entries[1].prepared
    assert len(store.archives.stored()) == 1


def test_a_definition_without_a_script_is_its_base(store: AssetStore, driver: Driver, make_task: MakeTask) -> None:
    task = make_task("")
    (entry,) = store.build([task])
    assert entry.failure is None
    assert entry.set_up.delta == ""
    assert output_of(driver, store, task, "cat /etc/base-marker") == "base\n"


def test_a_failed_set_up_is_recorded_and_not_kept(store: AssetStore, make_task: MakeTask) -> None:
    good, bad = make_task("true", "good"), make_task("echo about to fail\nfalse\necho never", "bad")
    entries = {entry.task_id: entry for entry in store.build([good, bad])}
    assert entries["good"].failure is None
    assert entries["bad"].failure is FailureClass.SET_UP
    assert entries["bad"].set_up.reason == "exit code 1: about to fail"
    assert "about to fail" in store.log(entries["bad"].set_up)
    assert entries["bad"].prepared == ""
    assert len(store.archives.stored()) == 1
    with pytest.raises(InputError, match="Task bad has no prepared state: exit code 1"):
        store.prepared(bad)


def test_a_failed_set_up_is_tried_again(store: AssetStore, make_task: MakeTask) -> None:
    task = make_task(f"[ -e {INSIDE}/go ]")
    assert store.build([task], jobs=1)[0].failure is FailureClass.SET_UP
    (slot,) = (store.root / "packages").glob("*/slot-0")
    (slot / "go").touch()
    assert store.build([task])[0].failure is None


def test_a_set_up_that_does_not_end(site: Site, driver: Driver, make_task: MakeTask) -> None:
    store = AssetStore(site.cache / "assets", driver, site, timeout=1)
    (entry,) = store.build([make_task("echo begun; trap '' TERM; sleep 2 & wait; exit 1")])
    assert entry.failure is FailureClass.SET_UP_TIMEOUT
    assert entry.set_up.reason == "not finished after 1 s; last line: begun"
    assert not stray_files(store.root)


def test_a_set_up_that_fills_the_disk(site: Site, driver: Driver, make_task: MakeTask) -> None:
    store = AssetStore(site.cache / "assets", driver, site, limits=Limits(disk=8 << 20))
    (entry,) = store.build([make_task("dd if=/dev/zero of=/big bs=1M count=64")])
    assert entry.failure is FailureClass.SPACE
    assert "\n" not in entry.set_up.reason
    assert store.archives.stored() == {}


def test_a_definition_with_a_syntax_error_stops_before_anything_is_made(store: AssetStore, make_task: MakeTask) -> None:
    broken = make_task("true", "broken")
    broken = Task(**(vars(broken) | {"definition": "FROM tiny\n"}))
    with pytest.raises(InputError, match=r"Task broken: Definition line 1: 'FROM tiny' is no header line"):
        store.build([make_task("true"), broken])
    assert not store.root.exists()


def test_an_unsupported_definition_is_classified(store: AssetStore, make_task: MakeTask) -> None:
    task = make_task("true", "t2")
    task = Task(**(vars(task) | {"definition": task.definition + "%files\n  /etc/hosts /hosts\n"}))
    first, second = store.build([make_task("true"), task])
    assert first.failure is None
    assert second.failure is FailureClass.UNSUPPORTED
    assert "section %files" in second.set_up.reason


def test_an_image_that_cannot_be_had_is_classified(store: AssetStore, make_task: MakeTask, site: Site) -> None:
    bases = {**site.bases, "other:1": site.bases["tiny:1"].model_copy(update={"substitute": None})}
    store = AssetStore(store.root, store._driver, site.model_copy(update={"bases": bases}))
    first, second = store.build([make_task("true", "t1", "other:1"), make_task("true", "t2")])
    assert first.failure is FailureClass.MIRROR
    assert "other:1" in first.set_up.reason
    assert second.failure is None


def test_an_archive_that_is_not_there_is_one_line(site: Site, driver: Driver, make_task: MakeTask) -> None:
    substitute = site.bases["tiny:1"].substitute.model_copy(update={"path": Path("/no/such.tar")})
    bases = {"tiny:1": site.bases["tiny:1"].model_copy(update={"substitute": substitute})}
    store = AssetStore(site.cache / "assets", driver, site.model_copy(update={"bases": bases}))
    with pytest.raises(InputError, match=r"/no/such\.tar does not exist"):
        store.build([make_task("true")])


def test_a_task_that_was_not_built_is_one_line(store: AssetStore, make_task: MakeTask) -> None:
    with pytest.raises(InputError, match="it was not built"):
        store.prepared(make_task("true"))


class Interrupting(BuildProgress):
    """Ctrl-C as soon as the first task is done."""

    def done(self, entry: ManifestEntry) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)


def test_an_interrupted_build_keeps_what_was_finished(site: Site, make_task: MakeTask) -> None:
    tasks = [make_task("true", "quick"), *(make_task(f"sleep 30; echo {n}", f"slow-{n}") for n in range(3))]
    root = site.cache / "assets"
    with open_driver() as driver:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            AssetStore(root, driver, site).build(tasks, jobs=2, progress=Interrupting())
        assert time.monotonic() - began < 10
    assert [value["task_id"] for value in read_manifest(root / "manifest.json").values()] == ["quick"]
    assert not stray_files(root)
    with open_driver() as driver:
        (entry,) = AssetStore(root, driver, site).build(tasks[:1])
        assert entry.failure is None


def test_two_builds_take_turns(site: Site, driver: Driver, make_task: MakeTask) -> None:
    stores = [AssetStore(site.cache / "assets", driver, site) for _ in range(2)]
    tasks = [make_task("echo a > /a", "t1"), make_task("echo b > /b", "t2")]
    entries: list[list[ManifestEntry]] = []
    threads = [threading.Thread(target=lambda store=store: entries.append(store.build(tasks))) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert manifest_digest(entries[0]) == manifest_digest(entries[1])


def test_nothing_of_the_host_is_in_a_delta(store: AssetStore, driver: Driver, make_task: MakeTask) -> None:
    task = make_task("ls -A /run/leonardo-set-up > /lent; cat /etc/resolv.conf > /dev/null; env > /dev/null")
    (entry,) = store.build([task])
    assert "apt.conf" in output_of(driver, store, task, "cat /lent")
    assert (
        output_of(driver, store, task, "ls -A /run /dev/leonardo 2>/dev/null; env | grep -c -e APT_ -e PIP_") == "0\n"
    )
    assert entry.set_up.entries <= 4


@pytest.mark.parametrize("garbage", ["", "garbage", "[]", "5", '{"tasks": []}', '{"key": 5, "delta": 6}'])
def test_records_that_are_none_are_made_again(store: AssetStore, make_task: MakeTask, garbage: str) -> None:
    task = make_task("echo a > /a")
    store.build([task])
    for path in store.root.glob("**/*.json"):
        path.write_text(garbage)
    with sqlite3.connect(store.root / "catalogue" / "main.db") as connection:
        connection.execute("update set_ups set record = ?", (garbage,))
    assert [entry.failure for entry in store.build([task])] == [None]
    assert json.loads((store.root / "manifest.json").read_text())["tasks"]


def test_unpacked_deltas_go_when_nobody_uses_them(
    driver: Driver, site: Site, store: AssetStore, make_task: MakeTask
) -> None:
    tasks = [make_task(f"seq 9000 >/numbers; echo {number} >/number", f"t{number}") for number in range(3)]
    store.build(tasks)
    bounded = AssetStore(store.root, driver, site, most_unpacked=60_000)  # one delta, not two

    def number_of(task: Task) -> str:
        with bounded.using(task) as state:
            backend = driver.backend(state.stack)
            backend.start()
            answer = backend.run_command("cat /number").stdout
            backend.close()
            return answer

    assert [number_of(task) for task in (*tasks, *tasks)] == ["0\n", "1\n", "2\n"] * 2
    assert bounded.cache.evictions >= 4


def test_what_rules_make_of_a_task_is_read_from_a_store_that_cannot_be_written(
    store: AssetStore, site: Site, driver: Driver, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task("echo 1 > /one")
    store.build([task])
    again = AssetStore(store.root, driver, site)
    monkeypatch.setattr(again.locks, "alone", lambda name: pytest.fail("a lock is a file"))
    assert again.adapted(task).image == "tiny:1"
