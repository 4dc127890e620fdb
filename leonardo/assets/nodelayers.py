"""Layers as this node mounts them: unpacked by its driver, verified before that, in bounded space."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from leonardo.assets.archives import Archives
from leonardo.assets.cache import LayerCache, Unpack
from leonardo.errors import InfrastructureError
from leonardo.files import sha256_file
from leonardo.sandbox.driver import Driver, LayerStack


def layers_folder(node_cache: Path, driver: Driver) -> Path:
    """Where a node keeps layers: those unpacked by different drivers differ in owners and attributes."""
    return node_cache / (f"{driver.name}-degraded" if driver.degraded else driver.name)


class NodeLayers:
    """Base images and layers by their digests. Safe to use from several threads and processes.

    ``before_reading`` is called before an archive of the store is read.
    """

    def __init__(
        self,
        driver: Driver,
        archives: Archives,
        cache: LayerCache,
        before_reading: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_reading = before_reading
        self._driver = driver
        self._archives = archives
        self._cache = cache

    @contextmanager
    def using(
        self,
        base_archive: Path,
        base: str,
        layers: Sequence[str],
        environment: Mapping[str, str],
        own: tuple[str, ...] = (),
    ) -> Iterator[LayerStack]:
        """A stack of layers, uppermost first, which stay unpacked during the block."""
        with ExitStack() as held:
            folder = held.enter_context(self._cache.using(base, self._base(base_archive, base)))
            folders = [held.enter_context(self._cache.using(digest, self._layer(digest))) for digest in layers]
            yield LayerStack(folder, tuple(folders), environment, own)

    def stack(
        self,
        base_archive: Path,
        base: str,
        layers: Sequence[str],
        environment: Mapping[str, str],
        own: tuple[str, ...] = (),
    ) -> LayerStack:
        """A stack of layers, uppermost first. Raises InfrastructureError where one is missing or damaged."""
        folder = self._cache.get(base, self._base(base_archive, base))
        folders = [self._cache.get(digest, self._layer(digest)) for digest in layers]
        return LayerStack(folder, tuple(folders), environment, own)

    def unpack(self, digest: str) -> None:
        """Unpack a layer if it is not. Raises InfrastructureError where it is missing or damaged."""
        self._cache.get(digest, self._layer(digest))

    def _base(self, archive: Path, digest: str) -> Unpack:
        def unpack(folder: Path) -> None:
            self._before_reading()
            if not archive.is_file() or sha256_file(archive) != digest:
                raise InfrastructureError(f"{archive} is missing or damaged", "Remove it and build again")
            self._driver.unpack(archive, folder)

        return unpack

    def _layer(self, digest: str) -> Unpack:
        def unpack(folder: Path) -> None:
            self._before_reading()
            with self._archives.unpackable(digest) as archive:
                self._driver.unpack(archive, folder)

        return unpack
