"""The small things of a store, in one file a builder: records and logs of set-ups, and layers of a few kilobytes.

Tens of thousands of rows would otherwise be as many files, three times over, and file systems of clusters count those.
SQLite keeps what was written whole, whatever kills the writer. Builders that share a store over a network write each to
a file of its own name, and read all.
"""

import json
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from leonardo.assets.manifest import SetUpRecord
from leonardo.errors import FailureClass, InfrastructureError

_TABLES = """
create table if not exists set_ups (key text primary key, record text not null, log blob, builds integer not null);
create table if not exists layers (digest text primary key, content blob not null);
"""
_PATIENCE = 60.0  # seconds that another process may take to write


class Catalogue:
    """Safe to use from several threads and processes.

    Args:
        folder: holds a file a builder, ``<name>.db``.
        name: the file that this one writes to.

    Methods raise :class:`InfrastructureError` where a file is damaged, cannot be written or the disk is full.
    """

    def __init__(self, folder: Path, name: str = "main") -> None:
        self._folder = folder
        self._own = folder / f"{name}.db"
        self._open: dict[Path, sqlite3.Connection] = {}
        self._lock = threading.RLock()

    # --- set-ups ------------------------------------------------------------------------------------------------------

    def record(self, key: str) -> SetUpRecord | None:
        """The record of a set-up, ``None`` where there is none."""
        found = [_record(row[0]) for row in self._all("select record from set_ups where key = ?", key)]
        found = [record for record in found if record is not None]
        return next((record for record in found if record.failure is None), found[0] if found else None)

    def records(self) -> Iterator[SetUpRecord]:
        """All records."""
        for (text,) in self._all("select record from set_ups order by key"):
            if record := _record(text):
                yield record

    def log(self, key: str) -> str:
        """What a set-up wrote, ``""`` where that is not known."""
        for (log,) in self._all("select log from set_ups where key = ?", key):
            if log is not None:
                return zlib.decompress(log).decode(errors="replace")
        return ""

    def builds(self, key: str) -> int:
        """How often a set-up was run to its end."""
        return sum(count for (count,) in self._all("select builds from set_ups where key = ?", key))

    def put_record(self, record: SetUpRecord, log: str | None = None, *, built: bool = True) -> None:
        """Keep a record, in the place of an older one; a log that is not given stays."""
        packed = None if log is None else zlib.compress(log.encode(errors="replace"))
        with self._writing() as connection:
            connection.execute(
                "insert into set_ups values (?, ?, ?, ?) on conflict (key) do update set record = excluded.record, "
                "log = coalesce(excluded.log, log), builds = builds + excluded.builds",
                (record.key, json.dumps(asdict(record), sort_keys=True), packed, int(built)),
            )

    # --- small layers -------------------------------------------------------------------------------------------------

    def layer(self, digest: str) -> bytes | None:
        """A small layer's archive, ``None`` where there is none."""
        return next((row[0] for row in self._all("select content from layers where digest = ?", digest)), None)

    def layers(self) -> dict[str, int]:
        """Digest -> bytes of all small layers."""
        return dict(self._all("select digest, length(content) from layers"))

    def put_layer(self, digest: str, content: bytes) -> None:
        """Keep a small layer, in the place of a damaged one."""
        with self._writing() as connection:
            connection.execute("insert or replace into layers values (?, ?)", (digest, content))

    # --- all ----------------------------------------------------------------------------------------------------------

    def remove(self, keys: Iterable[str], digests: Iterable[str]) -> None:
        """Remove records and layers, wherever they are, and give the space back."""
        keys, digests = [(key,) for key in keys], [(digest,) for digest in digests]
        for path in self._files():
            with self._writing(path) as connection:
                connection.executemany("delete from set_ups where key = ?", keys)
                connection.executemany("delete from layers where digest = ?", digests)
            with self._failures(path), self._lock:
                self._connection(path).execute("vacuum")

    def check(self) -> None:
        """Read all of it. Raises InfrastructureError where a file is damaged."""
        with self._lock:
            for path in self._files():
                with self._failures(path):
                    (answer,) = self._connection(path).execute("pragma quick_check").fetchone()
                    if answer != "ok":
                        raise sqlite3.DatabaseError(answer)

    def close(self) -> None:
        """Close the files. What is asked for later opens them again."""
        with self._lock:
            for connection in self._open.values():
                connection.close()
            self._open.clear()

    def _files(self) -> list[Path]:
        others = sorted(path for path in self._folder.glob("*.db") if path != self._own)
        return [self._own, *others] if self._own.exists() else others

    def _all(self, query: str, *values: str) -> list[tuple]:
        rows: list[tuple] = []
        with self._lock:
            for path in self._files():
                with self._failures(path):
                    rows += self._connection(path).execute(query, values).fetchall()
        return rows

    @contextmanager
    def _writing(self, path: Path | None = None) -> Iterator[sqlite3.Connection]:
        path = path or self._own
        with self._lock, self._failures(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = self._connection(path)
            with connection:
                yield connection

    def _connection(self, path: Path) -> sqlite3.Connection:
        if path not in self._open:
            if path.exists() and not _can_write(path):
                # nobody writes to it here; a journal that was left would have to be undone first
                address = f"{path.absolute().as_uri()}?mode=ro"
                address += "" if path.with_name(f"{path.name}-journal").exists() else "&immutable=1"
                connection = sqlite3.connect(address, uri=True, timeout=_PATIENCE, check_same_thread=False)
            else:
                connection = sqlite3.connect(path, timeout=_PATIENCE, check_same_thread=False)
                connection.executescript(_TABLES)
            self._open[path] = connection
        return self._open[path]

    @contextmanager
    def _failures(self, path: Path) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            with suppress(KeyError, sqlite3.Error):
                self._open.pop(path).close()
            if "full" in str(error) or "disk I/O" in str(error):
                raise InfrastructureError(
                    f"{path} cannot be written ({error})", "Free some space there", FailureClass.SPACE
                ) from error
            hint = "Let it be written to" if "readonly" in str(error) else "Remove it; what was in it is built again"
            raise InfrastructureError(f"{path} cannot be used ({error})", hint) from error


def _can_write(path: Path) -> bool:
    try:
        with path.open("r+b"):
            return True
    except OSError:
        return False


def _record(text: str) -> SetUpRecord | None:
    try:
        return SetUpRecord.from_json(json.loads(text))
    except (ValueError, TypeError):
        return None
