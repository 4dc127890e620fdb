import io
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from leonardo.assets import tarstream
from leonardo.assets.normal import MOMENT, normalise
from leonardo.assets.tarstream import BrokenArchive
from leonardo.sandbox.driver import Driver, LayerStack

Captured = Callable[[str], tuple[Path, float, float]]


@pytest.fixture
def captured(driver: Driver, tmp_path: Path, tiny_root_archive: Path) -> Captured:
    """What a script left, and when it began and ended."""
    driver.unpack(tiny_root_archive, tmp_path / "base")

    def run(script: str) -> tuple[Path, float, float]:
        archive = tmp_path / f"{time.monotonic_ns()}.tar.gz"
        begun = time.time()
        assert driver.set_up(LayerStack(tmp_path / "base"), script, archive, timeout=20).exit_code == 0
        return archive, begun, time.time()

    yield run
    driver.remove(tmp_path / "base")


def normal(archive: Path, begun: float, ended: float) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    target = io.BytesIO()
    normalise(archive, target, begun, ended)
    target.seek(0)
    with tarfile.open(fileobj=target) as content:
        return {
            member.name.removeprefix("./"): (member, content.extractfile(member).read() if member.isreg() else b"")
            for member in content
        }


def test_moments_of_the_run_and_no_others(captured: Captured) -> None:
    members = normal(
        *captured(
            "mkdir /new; echo a > /new/a; echo b > /b; touch -d '2024-02-03 04:05:06.5' /b\n"
            "ln -s /b /link; mkfifo /new/pipe; ln /new/a /new/hard"
        )
    )
    assert {name: member.mtime for name, (member, _) in members.items()} == {
        ".": MOMENT,
        "b": 1706933106.5,
        "link": MOMENT,
        "new": MOMENT,
        "new/a": MOMENT,
        "new/hard": MOMENT,
        "new/pipe": MOMENT,
    }
    assert members["new/hard"][0].islnk()
    assert members["new/pipe"][0].isfifo()
    assert members["new/a"][1] == b"a\n"


def test_two_runs_give_the_same_bytes(captured: Captured) -> None:
    script = "mkdir -p /d/e; seq 5000 > /d/e/f; chown 33:33 /d/e/f; chmod 4755 /d/e/f; truncate -s 1G /d/sparse\n"
    script += "rm /etc/base-marker"
    first, second = io.BytesIO(), io.BytesIO()
    normalise(*(run := captured(script))[:1], first, *run[1:])
    time.sleep(1.1)
    normalise(*(run := captured(script))[:1], second, *run[1:])
    assert first.getvalue() == second.getvalue()
    assert len(first.getvalue()) < 100_000  # holes stay holes


def test_times_that_order_files_around_the_moment_keep_all(captured: Captured) -> None:
    archive, begun, ended = captured("echo old > /old; touch -d '3 days ago' /old; echo new > /new")
    content = normalise(archive, io.BytesIO(), begun, ended)
    assert content.keeps_times
    members = normal(archive, begun, ended)
    assert members["old"][0].mtime < begun - 86400 < begun - 2 <= members["new"][0].mtime


def test_compiled_python_and_passwords_tell_no_time(captured: Captured) -> None:
    day = int(time.time() // 86400)
    members = normal(
        *captured(
            "printf 'a:!:%d:0:\\nb:!:19000:0:\\n' $(( $(date +%s) / 86400 )) > /etc/shadow; mkdir /p; s=$(date +%s)\n"
            'little() { printf "\\\\$(printf %03o $(($1 & 255)))\\\\$(printf %03o $(($1 >> 8 & 255)))'
            '\\\\$(printf %03o $(($1 >> 16 & 255)))\\\\$(printf %03o $(($1 >> 24 & 255)))"; }\n'
            "{ printf 'MAGI\\0\\0\\0\\0'; little $s; printf 'SIZEcode'; } > /p/now.pyc\n"
            "{ printf 'MAGI\\1\\0\\0\\0'; little $s; printf 'SIZEcode'; } > /p/by-hash.pyc"
        )
    )
    assert members["etc/shadow"][1] == b"a:!:%d:0:\nb:!:19000:0:\n" % (MOMENT // 86400)
    assert members["p/now.pyc"][1] == b"MAGI\0\0\0\0" + MOMENT.to_bytes(4, "little") + b"SIZEcode"
    assert members["p/by-hash.pyc"][1][8:12] != MOMENT.to_bytes(4, "little")
    assert day > MOMENT // 86400


def test_logs_and_caches_of_package_managers_are_left_out(captured: Captured) -> None:
    members = normal(
        *captured(
            "mkdir -p /var/log/apt /var/cache/ldconfig /var/lib/apt /root/.cache/pip\n"
            "for f in /var/log/dpkg.log /var/log/apt/history.log /var/log/app.log /var/cache/ldconfig/aux-cache "
            "/root/.cache/pip/x; do echo $RANDOM > $f; done\n"
            "printf 'Package: b\\nAuto-Installed: 1\\n\\nPackage: a\\nAuto-Installed: 1\\n\\n"
            "Package: c\\nAuto-Installed: 0\\n\\n' > /var/lib/apt/extended_states\n"
            "echo x > /var/log/alternatives.log; ln /var/log/alternatives.log /var/linked"
        )
    )
    names = set(members)
    assert "var/log/app.log" in names
    assert not names & {"var/log/dpkg.log", "var/log/apt/history.log", "var/cache/ldconfig/aux-cache"}
    assert "root/.cache/pip/x" not in names
    assert {"var/linked", "var/log/alternatives.log"} <= names  # another entry is a link to it
    states = b"Package: a\nAuto-Installed: 1\n\nPackage: b\nAuto-Installed: 1\n\n"
    assert members["var/lib/apt/extended_states"][1] == states


def test_long_names_and_attributes_stay(captured: Captured) -> None:
    name = "/".join(["a-long-folder-name-of-thirty-six-signs"] * 6) + "/ä"
    members = normal(*captured(f"mkdir -p /{name.rpartition('/')[0]}; echo x > /{name}; rm -r /home; mkdir /home"))
    assert members[name][1] == b"x\n"
    assert members["home"][0].pax_headers["SCHILY.xattr.user.overlay.opaque"] == "y"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:700], lambda data: data[:300] + b"x" + data[301:], lambda d: b""]
)
def test_a_broken_archive_is_told(damage: Callable[[bytes], bytes]) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        archive.addfile(member := tarfile.TarInfo("a"))
        member.size = 1000
        archive.addfile(member, io.BytesIO(b"x" * 1000))
    with pytest.raises(BrokenArchive):
        list(tarstream.entries(io.BytesIO(damage(whole.getvalue()))))
