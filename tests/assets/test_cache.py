import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from leonardo.assets.cache import LayerCache


@pytest.fixture
def cache(tmp_path: Path) -> LayerCache:
    return LayerCache(tmp_path / "cache", shutil.rmtree, most_bytes=30)


def unpack(layer: Path) -> None:
    layer.mkdir()
    (layer / "file").write_text(layer.name.ljust(10))


def use(cache: LayerCache, name: str) -> None:
    with cache.using(name, unpack) as layer:
        assert (layer / "file").read_text().rstrip() == name


def layers(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")}


def test_the_least_recently_used_goes_first(cache: LayerCache, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "a", "d"):
        use(cache, name)
    assert layers(tmp_path) == {"a", "c", "d"}
    assert (cache.hits, cache.misses, cache.evictions) == (1, 4, 1)
    use(cache, "b")  # is made again
    assert layers(tmp_path) == {"a", "b", "d"}


def test_what_is_in_use_stays(cache: LayerCache, tmp_path: Path) -> None:
    with cache.using("a", unpack), cache.using("b", unpack):
        for name in ("c", "d", "e"):
            use(cache, name)
        assert {"a", "b"} < layers(tmp_path)
    use(cache, "f")

    assert "a" not in layers(tmp_path)


def test_another_process_uses_it_until_it_is_killed(cache: LayerCache, tmp_path: Path) -> None:
    use(cache, "a")
    code = (
        "import sys, time, pathlib; from leonardo.assets.cache import LayerCache\n"
        "with LayerCache(pathlib.Path(sys.argv[1]), print).using('a', print):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "cache")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    for name in ("b", "c", "d", "e"):
        use(cache, name)
    assert "a" in layers(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    use(cache, "f")
    assert "a" not in layers(tmp_path)


def test_a_failed_unpacking_leaves_nothing_in_use(cache: LayerCache, tmp_path: Path) -> None:
    def fail(layer: Path) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"), cache.using("a", fail):
        pass
    use(cache, "a")


def test_threads_unpack_it_once_and_never_lose_it(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache", shutil.rmtree, most_bytes=15)  # one at a time, so all the others go
    with futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: use(cache, f"layer-{number % 4}"), range(200)))
    for number in range(5):  # threads may have had all four in use all the time: the fifth makes the others go
        use(cache, f"layer-{number}")
    assert cache.hits + cache.misses == 205
    assert cache.evictions > 0


def test_threads_that_want_a_missing_layer_at_once_all_get_it_while_the_first_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited to make the layer must not wait for those who use it: they may wait for each other."""
    is_whole = LayerCache._is_whole

    def seen_together(*arguments: Any) -> bool:
        found = is_whole(*arguments)
        time.sleep(0 if found else 0.01)  # all that want it have seen that it is missing before one makes it
        return found

    monkeypatch.setattr(LayerCache, "_is_whole", seen_together)
    cache = LayerCache(tmp_path / "cache", shutil.rmtree)
    together = threading.Barrier(8)

    def use_until_all_have_it(name: str) -> None:
        together.wait(20)
        with cache.using(name, unpack):
            together.wait(20)

    with futures.ThreadPoolExecutor(8) as threads:
        for number in range(5):
            list(threads.map(use_until_all_have_it, [f"layer-{number}"] * 8))
    assert cache.misses == 5
