from collections.abc import Callable

import pytest

from leonardo.assets.proof import prove
from leonardo.assets.store import AssetStore
from leonardo.sandbox.driver import Driver
from leonardo.site import Site
from leonardo.tasks.task import Task

MakeTask = Callable[..., Task]
CORE = "apt-get install -y python3 python3-pip"


@pytest.fixture
def store(package_site: Site, driver: Driver) -> AssetStore:
    return AssetStore(package_site.cache / "assets", driver, package_site, timeout=20)


def test_a_set_up_that_is_the_same_twice_and_whole(store: AssetStore, driver: Driver, make_task: MakeTask) -> None:
    task = make_task(f"{CORE} jq\necho 1 > /one")
    (entry,) = store.build([task])
    proof, proven = prove(store, driver, entry, task)
    assert proof.random == proof.changed == ()
    assert proven.prepared == entry.prepared
    assert store.entry(task).set_up.random == ()
    assert entry.set_up.random is None


def test_a_random_set_up_is_recorded(store: AssetStore, driver: Driver, make_task: MakeTask) -> None:
    task = make_task(f"{CORE}\nhead -c 8 /dev/urandom > /etc/random; echo same > /same; mktemp -d /d-XXXXXXXX")
    (entry,) = store.build([task])
    proof, proven = prove(store, driver, entry, task)
    assert "etc/random" in proof.random
    assert {path.split("-")[0] for path in proof.random} == {"etc/random", "d"}
    assert proof.changed == ()
    assert proven.prepared == entry.prepared
    assert store.entry(task).set_up.random == proof.random


def test_a_world_that_the_split_would_change_is_one_layer(
    store: AssetStore, driver: Driver, make_task: MakeTask
) -> None:
    # the time of an installed file is the run's own in the whole, and older in layers
    task = make_task(
        f"{CORE}\ntouch /now; sleep 1.1; [ /usr/share/packages/python3 -ot /now ] || echo whole > /whole\n"
        "s=$(date +%s); m=$(stat -c %Y /usr/share/packages/python3)\n"
        "[ $((s - m)) -gt 1000 ] && echo old > /age || echo new > /age"
    )
    (entry,) = store.build([task])
    proof, proven = prove(store, driver, entry, task)
    assert proof.changed == ("age",)
    assert proven.set_up.packages == ()
    assert proven.set_up.one_layer == "the split changes 1 files, such as age"
    assert store.build([task])[0].prepared == proven.prepared != entry.prepared
