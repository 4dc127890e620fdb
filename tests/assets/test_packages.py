from pathlib import Path

import pytest

from leonardo.assets.packages import INSIDE, PackageNetwork, host_archive, source_lines

LISTING = """http://a.example/debian/|bookworm|main|Debian
http://a.example/debian/|bookworm|contrib|Debian
http://a.example/debian-security/|bookworm-security|main|Debian
http://third.example/|bookworm|main|Third Party
http://a.example/debian/|trixie|main|Debian"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with an apt and a pip of its own."""
    folder = tmp_path / "programs"
    folder.mkdir()
    settings = 'Acquire::Check-Date "false";\nAcquire::http::Proxy "http://proxy.example";\nDir::Cache "x";\n'
    for name, text in (("apt-get", LISTING), ("apt-config", settings)):
        (folder / name).write_text(f"#!/bin/sh\ncat << 'END'\n{text}\nEND\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret@index.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///opt/simple https://more.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/opt/wheels")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("https_proxy", "http://proxy.example")
    return folder


def test_only_the_distributions_archive_is_lent(host: Path) -> None:
    assert source_lines(host_archive("bookworm")) == [
        "deb http://a.example/debian/ bookworm main",
        "deb http://a.example/debian-security/ bookworm-security main",
    ]
    assert host_archive("jammy") == []


def test_what_a_set_up_is_lent(host: Path, tmp_path: Path) -> None:
    network = PackageNetwork(tmp_path / "packages" / "base", ["deb http://a.example bookworm main"], ["numpy<2.3"])
    folder = network.folder(0)
    assert (folder / "sources.list").read_text() == "deb http://a.example bookworm main\n"
    assert (folder / "constraints.txt").read_text() == "numpy<2.3\n"
    configuration = (folder / "apt.conf").read_text()
    assert f'Dir::Etc::SourceList "{INSIDE}/sources.list";' in configuration
    assert 'Acquire::http::Proxy "http://proxy.example";' in configuration
    assert 'Dir::Cache "x"' not in configuration
    variables = network.environment
    assert variables["PIP_CONSTRAINT"] == f"{INSIDE}/constraints.txt"
    assert variables["PIP_INDEX_URL"] == "https://me:secret@index.example/simple"
    assert variables["PIP_EXTRA_INDEX_URL"] == "https://more.example/simple"
    assert "PIP_FIND_LINKS" not in variables
    assert variables["HTTPS_PROXY"] == "http://proxy.example"


def test_a_base_with_sources_of_its_own_keeps_them(host: Path, tmp_path: Path) -> None:
    folder = PackageNetwork(tmp_path / "packages" / "base").folder(0)
    assert "SourceList" not in (folder / "apt.conf").read_text()
    assert not (folder / "sources.list").exists()


def test_packages_are_downloaded_once_for_all_slots(host: Path, tmp_path: Path) -> None:
    network = PackageNetwork(tmp_path / "packages" / "base")
    for slot in (0, 1):
        (network.folder(slot) / "cache" / "archives").mkdir(parents=True)
    (network.folder(0) / "cache" / "archives" / "jq_1_amd64.deb").write_text("x")
    assert (network.folder(1) / "cache" / "archives" / "jq_1_amd64.deb").read_text() == "x"


def test_others_may_not_reach_the_folders(host: Path, tmp_path: Path) -> None:
    PackageNetwork(tmp_path / "packages" / "base").folder(0)
    assert (tmp_path / "packages").stat().st_mode & 0o077 == 0
