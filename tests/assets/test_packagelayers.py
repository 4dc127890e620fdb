import json
import time
from collections.abc import Callable

import pytest

from leonardo.assets import runner
from leonardo.assets.packagelayers import simulated
from leonardo.assets.plan import BuildSettings
from leonardo.assets.proof import differing
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass
from leonardo.sandbox.driver import Driver
from leonardo.site import Site
from leonardo.tasks.task import Task

MakeTask = Callable[..., Task]
CORE = "apt-get update && apt-get install -y python3 python3-pip"


@pytest.fixture
def store(package_site: Site, driver: Driver) -> AssetStore:
    return AssetStore(package_site.cache / "assets", driver, package_site, timeout=20)


def whole_of(store: AssetStore, driver: Driver, site: Site) -> AssetStore:
    return AssetStore(store.root, driver, site, settings=BuildSettings(timeout=20, split=False))


def runs(store: AssetStore, what: str) -> int:
    """How often a line was written by a set-up that was kept."""
    return sum(store.log(record).count(what) for record in store.catalogue.records())


def test_packages_are_installed_once_and_shared(store: AssetStore, make_task: MakeTask) -> None:
    tasks = [
        make_task(f"{CORE}\npip3 install pytest\necho 1 > /one", "t1"),
        make_task(f"{CORE} jq\npip3 install pytest\necho 2 > /two", "t2"),
        make_task(f"{CORE}\npip3 install -q pytest\necho 3 > /three", "t3"),
    ]
    first, second, third = (entry.set_up for entry in store.build(tasks, jobs=2))
    assert [record.failure for record in (first, second, third)] == [None] * 3
    core, pytest_layer = first.packages
    assert third.packages == first.packages
    assert second.packages[0] == core
    assert len(second.packages) == 3
    assert second.packages[2] == pytest_layer  # made on another layer, and the same
    assert first.compressed_bytes < 1000
    assert runs(store, "apt-get install -y python3 python3-pip") == 1
    assert runs(store, "pip3 install pytest") == 2


def test_the_merged_view_is_that_of_the_whole(
    store: AssetStore, driver: Driver, package_site: Site, make_task: MakeTask
) -> None:
    task = make_task(f"{CORE} jq needs-curl\npip3 install pytest\nrm /usr/share/packages/jq; echo 1 > /one")
    (layers,) = store.build([task])
    (whole,) = whole_of(store, driver, package_site).build([task])
    assert layers.set_up.one_layer == ""
    assert len(layers.set_up.packages) == 3
    assert whole.set_up.packages == ()
    assert differing(driver, store.stack(layers), store.stack(whole)) == set()


def test_other_packages_than_the_whole_would_bring_are_one_layer(store: AssetStore, make_task: MakeTask) -> None:
    (entry,) = store.build([make_task(f"{CORE} rival\necho 1 > /one")])
    assert entry.failure is None
    assert len(entry.set_up.packages) == 1  # the apt step as a whole, still shared
    record = next(record for record in store.catalogue.records() if record.one_layer)
    assert record.one_layer == "other packages: another=1.0 other=1.0"


def test_packages_that_cannot_be_had_leave_the_script_as_it_is(store: AssetStore, make_task: MakeTask) -> None:
    good, bad = store.build(
        [
            make_task(
                f"{CORE}\napt-get update && apt-get install -y absent && rm -rf /var/lib/apt/lists/*\ntrue", "t1"
            ),
            make_task(f"{CORE}\napt-get install -y absent\ntrue", "t2"),
        ]
    )
    assert good.failure is None  # sh -e does not end for what fails in a list before its end
    assert good.set_up.one_layer.startswith("its packages alone: set-up: exit code 100")
    assert good.set_up.packages == ()
    assert bad.failure is FailureClass.SET_UP
    assert "absent" in bad.set_up.reason


def test_a_script_of_packages_has_no_layer_of_its_own(store: AssetStore, driver: Driver, make_task: MakeTask) -> None:
    task = make_task(CORE)
    (entry,) = store.build([task])
    assert entry.failure is None
    assert entry.set_up.delta == ""
    assert len(entry.set_up.packages) == 1
    backend = driver.backend(store.prepared(task).stack)
    backend.start()
    assert backend.run_command("cat /usr/share/packages/python3").stdout == "python3\n"
    backend.close()


def test_a_rebuild_elsewhere_gives_the_same(
    store: AssetStore, driver: Driver, package_site: Site, make_task: MakeTask
) -> None:
    task = make_task(f"{CORE} jq\npip3 install pytest\nmkdir /d; date > /dev/null; echo 1 > /d/one; chmod -R 777 /d")
    (first,) = store.build([task])
    time.sleep(1.1)
    (second,) = AssetStore(package_site.cache / "other", driver, package_site, timeout=20).build([task])
    assert first.set_up.layers == second.set_up.layers
    assert first.prepared == second.prepared


def test_only_what_the_network_failed_is_tried_again(
    store: AssetStore, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_PAUSE", 0.01)
    store.build([make_task("true")])  # makes the folder that set-ups are lent
    (slot,) = (store.root / "packages").glob("*/slot-0")
    (slot / "fail-once").touch()
    entries = store.build([make_task(f"{CORE}\ntrue", "t1"), make_task("false", "t2")], jobs=1)
    assert entries[0].failure is None
    assert not (slot / "fail-once").exists()
    assert entries[1].failure is FailureClass.SET_UP
    assert store.catalogue.builds(entries[1].set_up.key) == 1


def test_a_network_that_stays_away(store: AssetStore, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_PAUSE", 0.01)
    store.build([make_task("true")])
    (slot,) = (store.root / "packages").glob("*/slot-0")
    (slot / "no-network").touch()
    (entry,) = store.build([make_task(f"{CORE}\ntrue")], jobs=1)
    assert entry.failure is FailureClass.MIRROR
    (slot / "no-network").unlink()
    assert store.build([make_task(f"{CORE}\ntrue")], jobs=1)[0].failure is None


def test_offline_takes_what_is_there_and_begins_nothing_else(
    store: AssetStore, driver: Driver, package_site: Site, make_task: MakeTask
) -> None:
    store.build([make_task(f"{CORE}\ntrue", "t1")])
    offline = AssetStore(store.root, driver, package_site, settings=BuildSettings(timeout=20, offline=True))
    entries = offline.build(
        [
            make_task(f"{CORE}\necho new > /new", "t2"),
            make_task("echo without > /packages", "t3"),
            make_task("apt-get install -y jq\ntrue", "t4"),
        ]
    )
    assert [entry.failure for entry in entries] == [None, None, FailureClass.MIRROR]
    assert "this build is offline" in entries[2].set_up.reason
    fresh = AssetStore(package_site.cache / "fresh", driver, package_site, settings=BuildSettings(offline=True))
    (entry,) = fresh.build([make_task("true")])
    assert entry.failure is FailureClass.MIRROR
    assert "Base image tiny:1 is not in" in entry.set_up.reason


def test_a_damaged_package_layer_is_made_again(
    store: AssetStore, driver: Driver, package_site: Site, make_task: MakeTask
) -> None:
    task = make_task(f"{CORE}\necho 1 > /one")
    (first,) = store.build([task])
    store.catalogue.put_layer(first.set_up.packages[0], b"garbage")
    again = AssetStore(store.root, driver, package_site, timeout=20)
    (second,) = again.build([task])
    assert second.set_up.layers == first.set_up.layers
    assert again.archives.is_whole(first.set_up.packages[0])


def test_a_simulation_says_what_would_be_there() -> None:
    before = "a=1 b=1 c=1"
    simulation = "Reading\nInst b [1] (2 Debian:12 [amd64])\nInst d:amd64 (3 x [amd64]) []\nRemv c [1]\nConf b (2 x)\n"
    assert simulated(before, simulation) == {"a=1", "b=2", "d=3"}


def test_records_can_be_read_by_machines(store: AssetStore, make_task: MakeTask) -> None:
    (entry,) = store.build([make_task(f"{CORE}\ntrue")])
    known = json.loads((store.root / "manifest.json").read_text())["tasks"][entry.task_digest]
    assert known["set_up"]["packages"] == list(entry.set_up.packages)
