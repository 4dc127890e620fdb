import io
import tarfile
import time
from pathlib import Path

import pytest
from rich.console import Console

from leonardo.assets import registry
from leonardo.assets.bases import Bases
from leonardo.assets.progress import ConsoleProgress
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.sandbox.apptainer import find
from leonardo.sandbox.driver import Driver
from leonardo.site import BaseSource, BootstrapSubstitute, Site
from leonardo.tasks.task import Task

SUBSTITUTE = BootstrapSubstitute(kind="mmdebstrap", suite="bookworm", include=("procps",), reason="no registry here")

STATUS = """Package: bash
Status: install ok installed
Version: 5.2

Package: gone
Status: deinstall ok config-files
Version: 1.0
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is searched first for programs."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr("leonardo.sandbox.apptainer.PREFIX", folder / "none")
    return folder


def install(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)


def install_apt(folder: Path, *lines: str) -> None:
    install(folder, "apt-get", "cat << 'END'\n" + "\n".join(lines) + "\nEND")


def install_mmdebstrap(folder: Path, root: Path, first: str = "true") -> None:
    """One that writes ``root`` to the archive it is asked for, after the command ``first``."""
    install(folder, "mmdebstrap", f'{first}\nfor a; do case $a in *.tar) cp {root} "$a";; esac; done')


APT = (
    "http://mirror.example/debian/|bookworm|main|Debian",
    "http://mirror.example/debian/|bookworm-updates|main|Debian",
    "http://other.example/|bookworm|stable|Other",
    "http://other.example/|nodistro|main|Other",
)


def site_with(tmp_path: Path, source: BaseSource) -> Site:
    return Site(name="test", cache=tmp_path, bases={"img:1": source})


def make_root(path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("./var/lib/dpkg/status")
        member.size = len(STATUS)
        archive.addfile(member, io.BytesIO(STATUS.encode()))
    return path


def test_a_substitute_by_mmdebstrap(tmp_path: Path, programs: Path) -> None:
    root = make_root(tmp_path / "root.tar")
    install_apt(programs, *APT)
    install_mmdebstrap(programs, root, f'printf "%s\\n" "$@" > {tmp_path}/arguments')
    notes: list[str] = []
    base = Bases(tmp_path / "bases", site_with(tmp_path, BaseSource(substitute=SUBSTITUTE))).get("img:1", notes.append)
    assert base.packages == ["bash=5.2"]
    assert base.substitution == "bookworm minbase by mmdebstrap: no registry here"
    assert base.registry_failure == "its registry was not asked, for Apptainer is not installed"
    assert [note for note in notes if "Apptainer is not installed" in note] == [
        f"base img:1: {base.registry_failure}; in its stead a bookworm root file system is made"
    ]
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert "--include=procps" in arguments
    assert "bookworm" in arguments
    sources = [argument for argument in arguments if argument.startswith("deb ")]
    assert sources == [
        "deb http://mirror.example/debian/ bookworm main",
        "deb http://mirror.example/debian/ bookworm-updates main",
    ]
    record = next((tmp_path / "bases").glob("*.json")).read_text()
    assert "mirror.example" not in record


def test_a_base_is_made_once_and_again_when_damaged(tmp_path: Path, programs: Path) -> None:
    root = make_root(tmp_path / "root.tar")
    install_apt(programs, *APT)
    install_mmdebstrap(programs, root, f"echo >> {tmp_path}/runs")
    bases = Bases(tmp_path / "bases", site_with(tmp_path, BaseSource(substitute=SUBSTITUTE)))
    first = bases.get("img:1")
    assert bases.get("docker://img:1") == first
    assert len((tmp_path / "runs").read_text().splitlines()) == 1
    first.archive.write_bytes(first.archive.read_bytes()[:-512])
    assert bases.get("img:1").digest == first.digest
    assert len((tmp_path / "runs").read_text().splitlines()) == 2


def test_a_host_without_the_release_gives_its_own(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_root(tmp_path / "root.tar")
    install_apt(
        programs,
        "http://mirror.example/ubuntu/|jammy|main|Ubuntu",
        "http://mirror.example/ubuntu/|jammy|universe|Ubuntu",
    )
    install_mmdebstrap(programs, root)
    monkeypatch.setattr("leonardo.assets.bootstrap.host_release", lambda: "jammy")
    base = Bases(tmp_path / "bases", site_with(tmp_path, BaseSource(substitute=SUBSTITUTE))).get("img:1")
    assert base.release == "jammy"
    assert base.substitution.startswith("jammy minbase")


def test_a_host_without_apt_says_what_to_do(tmp_path: Path, programs: Path) -> None:
    install(programs, "apt-get", "exit 127")
    with pytest.raises(InfrastructureError, match="No root file system can be made here") as caught:
        Bases(tmp_path / "bases", site_with(tmp_path, BaseSource(substitute=SUBSTITUTE))).get("img:1")
    assert caught.value.failure is FailureClass.MIRROR
    assert "install Apptainer" in caught.value.hint


def test_a_mirror_that_fails_is_one_line_and_leaves_nothing(tmp_path: Path, programs: Path) -> None:
    install_apt(programs, *APT)
    install(programs, "mmdebstrap", "echo 'I: trying' >&2; echo 'E: apt-get update failed' >&2; exit 1")
    with pytest.raises(InfrastructureError, match="mmdebstrap bookworm failed \\(E: apt-get update failed\\)"):
        Bases(tmp_path / "bases", site_with(tmp_path, BaseSource(substitute=SUBSTITUTE))).get("img:1")
    assert list((tmp_path / "bases").iterdir()) == []


def test_a_hang_up_to_the_process_group_stays_there(tmp_path: Path, programs: Path) -> None:
    """mmdebstrap sends one when it fails, which would end its caller, too."""
    install_apt(programs, *APT)
    install(programs, "mmdebstrap", "kill -HUP 0; sleep 1; exit 1")
    with pytest.raises(InfrastructureError, match="mmdebstrap bookworm failed"):
        Bases(tmp_path / "bases", site_with(tmp_path, BaseSource(substitute=SUBSTITUTE))).get("img:1")


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"nothing of the kind")
    substitute = {"kind": "archive", "path": tmp_path / "x.tar", "reason": "a test"}
    source = BaseSource.model_validate({"registry": False, "substitute": substitute})
    with pytest.raises(InputError, match="no root file system archive"):
        Bases(tmp_path / "bases", site_with(tmp_path, source)).get("img:1")


def test_a_registry_that_refuses_is_recorded(tmp_path: Path, programs: Path) -> None:
    complaint = "FATAL: While performing build: no such host"
    install(programs, "apptainer", f"echo 'INFO: Starting build...' >&2; echo '{complaint}' >&2; exit 255")
    with pytest.raises(registry.RegistryError, match=complaint):
        registry.pull("img:1", tmp_path / "base.tar")


def test_a_registry_that_does_not_answer_costs_seconds(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs, "apptainer", "echo 'INFO: Starting build...'; exec sleep 60")
    monkeypatch.setattr(registry, "FIRST_SIGN", 0.5)
    began = time.monotonic()
    with pytest.raises(registry.RegistryError, match="gave no answer"):
        registry.pull("img:1", tmp_path / "base.tar")
    assert time.monotonic() - began < 5
    assert not (tmp_path / "base.tar").exists()


def test_from_an_image_to_its_archive(tmp_path: Path, tiny_root_archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way with a folder as the image's source, since tests reach no registry."""
    if find() is None:
        pytest.skip("Apptainer is not installed")
    source = tmp_path / "image"
    source.mkdir()
    with tarfile.open(tiny_root_archive) as archive:
        archive.extractall(source, filter="fully_trusted")
    monkeypatch.setattr(registry, "SOURCE", str(source))
    registry.pull("img:1", tmp_path / "base.tar")
    with tarfile.open(tmp_path / "base.tar") as archive:
        members = {member.name: member for member in archive}
    assert members["./etc/base-marker"].uid == 0
    assert members["./usr/bin/bash"].mode & 0o111
    assert not [name for name in members if "singularity" in name]
    assert not list(tmp_path.glob(".pull-*"))


def test_what_a_registry_said_is_said_once(tmp_path: Path, driver: Driver, programs: Path) -> None:
    """With what was asked, and what to do; not for each of the rows that stand on the image."""
    install(programs, "apptainer", "echo 'FATAL: While performing build: no such host' >&2; exit 255")
    shown = io.StringIO()
    store = AssetStore(tmp_path / "assets", driver, site_with(tmp_path, BaseSource()))
    rows = [Task(f"t{number}", "x", "", {}, image="img:1") for number in range(3)]
    with ConsoleProgress(Console(file=shown, width=80)) as progress:
        entries = store.build(rows, progress=progress)
    assert [entry.failure for entry in entries] == [FailureClass.MIRROR] * 3
    said = [line for line in shown.getvalue().splitlines() if "no such host" in line]
    assert said == [
        "t0: mirror: base image img:1 cannot be had: its registry was asked through Apptainer and said: FATAL: While "
        "performing build: no such host. Let this machine reach the registry, name a substitute in the site file "
        "(bases), or bring a bundle (leonardo assets unbundle)"
    ]
    with pytest.raises(InfrastructureError, match="base image img:1 cannot be had"):
        store.build(rows, strict=True)
