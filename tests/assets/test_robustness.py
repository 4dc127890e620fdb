"""What may happen to a store: full disks, no writing, other builders, removals in part, kills at any time."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from leonardo.assets.catalogue import Catalogue
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.sandbox.driver import Driver
from leonardo.sandbox.drivers import open_driver
from leonardo.site import Site
from leonardo.tasks.rows import read_tasks
from leonardo.tasks.task import Task

MakeTask = Callable[..., Task]
PROJECT = Path(__file__).parents[2]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounts need root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def late_driver(small_disk: Path) -> Iterator[Driver]:
    """A driver that sees what was mounted before it."""
    try:
        opened = open_driver()
    except InfrastructureError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def test_a_full_disk_is_told_and_nothing_is_lost(
    small_disk: Path, site: Site, late_driver: Driver, make_task: MakeTask
) -> None:
    driver = late_driver
    store = AssetStore(small_disk / "assets", driver, site, timeout=20)
    small = [make_task(f"echo {number} > /file", f"t{number}") for number in range(3)]
    large = make_task("head -c 100M /dev/urandom > /large", "large")
    first = store.build(small)
    (failed,) = store.build([large])
    assert failed.failure is FailureClass.SPACE, failed.set_up.reason
    assert "\n" not in failed.set_up.reason
    filler = small_disk / "filler"
    with filler.open("wb") as stream:
        stream.write(b"x" * max(0, free(small_disk) - (100 << 10)))
    (unnoted,) = store.build([make_task("seq 100000 | sort -R > /numbers", "t9")])
    assert unnoted.failure is FailureClass.SPACE
    filler.unlink()
    again = AssetStore(small_disk / "assets", driver, site, timeout=20)
    assert [entry.prepared for entry in again.build(small)] == [entry.prepared for entry in first]
    assert [again.catalogue.builds(entry.set_up.key) for entry in first] == [1, 1, 1]
    assert again.build([make_task("seq 100000 | sort -R > /numbers", "t9")])[0].failure is None
    for digest in again.archives.stored():
        assert again.archives.is_whole(digest)
    for digest in again.cache.layers():
        again.cache.remove(digest)


def test_a_store_that_cannot_be_written_to(small_disk: Path, tmp_path: Path, site: Site, make_task: MakeTask) -> None:
    task, root = make_task("echo 1 > /file"), small_disk / "assets"
    with open_driver() as driver:
        writable = AssetStore(root, driver, site, timeout=20)
        (entry,) = writable.build([task])
        writable.close()
        for digest in writable.cache.layers():
            writable.cache.remove(digest)
    subprocess.run(["mount", "--bind", small_disk, small_disk], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", small_disk], check=True)
    try:
        with open_driver() as driver:  # it sees what was mounted before it
            store = AssetStore(root, driver, site.model_copy(update={"node_cache": tmp_path / "node"}), timeout=20)
            with pytest.raises(InputError, match="cannot be written to"):
                store.build([make_task("echo 2 > /file")])
            for using in (store.using(task), store.named.using(entry.prepared)):
                with using as state, closing(driver.backend(state.stack)) as backend:
                    backend.start()
                    assert backend.run_command("cat /file").stdout == "1\n"
            with pytest.raises(InputError, match="it was not built"):
                store.prepared(make_task("echo 3 > /file"))
            store.close()
            for digest in store.cache.layers():
                store.cache.remove(digest)
    finally:
        subprocess.run(["umount", "--lazy", small_disk], check=True)


def test_unpacked_layers_that_were_removed_in_part(
    store: AssetStore, driver: Driver, site: Site, make_task: MakeTask
) -> None:
    task = make_task("mkdir /many; for n in $(seq 50); do echo $n > /many/$n; done")
    (entry,) = store.build([task])
    layers = [*store.prepared(task).stack.deltas, store.prepared(task).stack.base]
    (layers[0] / "many" / "7").unlink()  # by somebody's clean-up
    shutil.rmtree(layers[1] / "etc")  # by a removal that was killed
    fresh = AssetStore(store.root, driver, site, timeout=20)
    backend = driver.backend(fresh.prepared(task).stack)
    backend.start()
    assert backend.run_command("cat /many/7 /etc/base-marker; ls /many | wc -l").stdout == "7\nbase\n50\n"
    backend.close()
    assert entry.prepared == fresh.prepared(task).digest


def test_a_removal_that_is_killed_leaves_no_layer(store: AssetStore, make_task: MakeTask) -> None:
    task = make_task("echo 1 > /file")
    (entry,) = store.build([task])
    store.prepared(task)

    def killed(folder: Path) -> None:
        (folder / "file").unlink()
        raise SystemExit

    store.cache._remove = killed
    with pytest.raises(SystemExit):
        store.cache.remove(entry.set_up.delta)
    assert store.cache.layers()[entry.set_up.delta] == 0  # not whole


def test_a_catalogue_that_is_none(store: AssetStore, driver: Driver, site: Site, make_task: MakeTask) -> None:
    task = make_task("echo 1 > /file")
    store.build([task])
    store.close()
    path = store.root / "catalogue" / "main.db"
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(
        InfrastructureError, match=r"main\.db cannot be used .* Remove it; what was in it is built again"
    ):
        AssetStore(store.root, driver, site, timeout=20).build([task])[0]
    path.unlink()
    assert AssetStore(store.root, driver, site, timeout=20).build([task])[0].failure is None


# --- several processes ------------------------------------------------------------------------------------------------


def write_rows(path: Path, scripts: dict[str, str]) -> Path:
    rows = [
        {
            "task_id": name,
            "description": "Do it.",
            "container_def": f"Bootstrap: docker\nFrom: tiny:1\n%post\n{script}\n",
            "test_final_state": "def test_it(): pass",
        }
        for name, script in scripts.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def builder(rows: Path, site: Path, out: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "leonardo.cli", "assets", "build", str(rows), "--site", str(site)]
    environment = {name: value for name, value in os.environ.items() if name != "LEONARDO_CACHE"}
    return subprocess.Popen(
        [*command, "--out", str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=PROJECT,
        env=environment,
    )


def ladder(count: int) -> dict[str, str]:
    """Rows that share package layers, take some time, and leave small and large layers."""
    steps = [
        "",
        "apt-get install -y python3 python3-pip\n",
        "apt-get install -y python3 python3-pip jq\npip3 install a\n",
    ]
    work = ["echo {n} > /n", "seq 200000 > /numbers; echo {n} >> /numbers", "sleep 0.2; mkdir /{n}"]
    return {f"t{n}": steps[n % 3] + work[n // 3 % 3].format(n=n) for n in range(count)}


def check_whole(root: Path, rows: int) -> None:
    """Everything is built, once, and everything that is stored is right."""
    catalogue = Catalogue(root / "catalogue")
    records = list(catalogue.records())
    assert {record.failure for record in records} == {None}
    assert {catalogue.builds(record.key) for record in records} == {1}
    manifest = json.loads((root / "manifest.json").read_text())["tasks"]
    assert len(manifest) == rows
    assert all(entry["prepared"] for entry in manifest.values())
    assert not list((root / "making").iterdir())


def test_two_builders_at_once(package_site: Site, tmp_path: Path, driver: Driver) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", ladder(9))
    shards = [("--shard", "1/2"), ("--shard", "2/2"), (), ()]
    processes = [
        builder(rows, tmp_path / "package-site.yaml", tmp_path / f"out{number}", *arguments)
        for number, arguments in enumerate(shards)
    ]
    with ThreadPoolExecutor() as threads:
        outputs = list(threads.map(lambda process: process.communicate(timeout=120)[0], processes))
    assert [process.returncode for process in processes] == [0] * 4, outputs
    verdicts = [json.loads((tmp_path / f"out{number}" / "assets.json").read_text()) for number in range(4)]
    assert [verdict["figures"]["built"] for verdict in verdicts[2:]] == [9, 9]
    assert sum(verdict["figures"]["built"] for verdict in verdicts[:2]) == 9
    assert verdicts[2]["pins"]["manifest"] == verdicts[3]["pins"]["manifest"]
    root = package_site.cache / "assets"
    store = AssetStore(root, driver, package_site)
    assert all(map(store.archives.is_whole, store.archives.stored()))
    packages = [record for record in store.catalogue.records() if "apt-get" in store.log(record)]
    assert all(store.catalogue.builds(record.key) == 1 for record in packages)  # made by one, used by all


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1))
def test_twenty_kills(package_site: Site, tmp_path: Path, driver: Driver, seed: int) -> None:
    kills(package_site, tmp_path, driver, kill_times=20, rows=45, seed=seed)


def test_a_few_kills(package_site: Site, tmp_path: Path, driver: Driver) -> None:
    kills(package_site, tmp_path, driver, kill_times=3, rows=9, seed=1)


def kills(site: Site, tmp_path: Path, driver: Driver, *, kill_times: int, rows: int, seed: int) -> None:
    """Build a ladder, killed again and again with what it started, and hold what comes out against a build in peace."""
    chance = random.Random(seed)
    path = write_rows(tmp_path / "rows.jsonl", ladder(rows))
    killed = 0
    finished = None
    while finished is None:
        process = builder(path, tmp_path / "package-site.yaml", tmp_path / "out")
        if killed < kill_times:
            time.sleep(chance.uniform(0.8, 3.0))
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
            process.stdout.close()
            if process.returncode != -signal.SIGKILL:  # it was through before
                assert process.returncode == 0
                killed = kill_times
            continue
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        finished = json.loads((tmp_path / "out" / "assets.json").read_text())
    root = site.cache / "assets"
    check_whole(root, rows)
    store = AssetStore(root, driver, site)
    assert all(map(store.archives.is_whole, store.archives.stored()))
    peace = tmp_path / "peace"
    peaceful = AssetStore(peace, driver, site)
    tasks = read_tasks(path)
    assert [entry.prepared for entry in peaceful.build(tasks)] == [store.entry(task).prepared for task in tasks]
    assert finished["figures"]["built"] == rows
