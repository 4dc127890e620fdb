import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leonardo.assets.selection import select
from leonardo.holding import alone_at
from leonardo.site import Site
from leonardo.tasks.rows import read_tasks
from tests.assets.test_robustness import PROJECT, write_rows


@pytest.fixture
def leonardo(tmp_path: Path, package_site: Site):
    """Run ``leonardo assets ...`` on the site. Returns exit code and output."""

    def run(*arguments: object, site: Path = tmp_path / "package-site.yaml") -> tuple[int, str]:
        command = [sys.executable, "-m", "leonardo.cli", "assets", *map(str, arguments), "--site", str(site)]
        environment = {name: value for name, value in os.environ.items() if name != "LEONARDO_CACHE"}
        result = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, env=environment, timeout=120)
        return result.returncode, result.stdout + result.stderr

    return run


def test_build_carry_and_clean(leonardo, tmp_path: Path) -> None:
    rows = write_rows(
        tmp_path / "rows.jsonl",
        {"good": "apt-get install -y python3 python3-pip\necho 1 > /one", "bad": "false", "later": "echo 2 > /two"},
    )
    out = ("--out", tmp_path / "out")
    code, said = leonardo("build", rows, "--ids", "good,bad", "--check", "1", *out)
    assert code == 1
    assert "NOT OK: 1 of 2 rows built (1 set-up)" in said
    verdict = json.loads((tmp_path / "out" / "assets.json").read_text())
    assert verdict["ok"] is False
    assert verdict["figures"]["built"] == 1
    assert verdict["figures"]["package_layers"] == 1
    assert verdict["pins"]["manifest"]
    code, said = leonardo("build", rows, "--sample", "3", "--ids", "good,later", *out)
    assert code == 0
    assert "ok: 2 of 2 rows built" in said

    with alone_at(tmp_path / "b.tar"):
        code, said = leonardo("bundle", rows, tmp_path / "b.tar")
    assert code == 2 and len(said.splitlines()) == 1
    assert f"b.tar: another process works there (pid {os.getpid()} " in said
    code, said = leonardo("bundle", rows, tmp_path / "b.tar")
    assert code == 0
    assert "1 rows are not built and not in it" in said
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text((tmp_path / "package-site.yaml").read_text().replace("/cache", "/elsewhere"))
    assert leonardo("build", rows, "--first", "1", "--offline", *out, site=elsewhere)[0] == 2
    code, said = leonardo("unbundle", tmp_path / "b.tar", site=elsewhere)
    assert code == 0
    assert "2 rows" in said
    assert leonardo("build", rows, "--ids", "good,later", "--offline", *out, site=elsewhere)[0] == 0

    code, said = leonardo("gc")
    assert code == 0
    assert "garbage: 0 layers, 0 bases" in said
    keep = write_rows(tmp_path / "keep.jsonl", {"later": "echo 2 > /two"})
    code, said = leonardo("gc", "--keep", keep)
    assert "garbage: 2 layers" in said
    assert "nothing was removed" in said
    code, said = leonardo("gc", "--keep", keep, "--delete")
    assert "removed: 2 layers" in said
    assert "garbage: 0 layers" in leonardo("gc")[1]


def test_a_part_without_a_row_is_done(leonardo, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", {"good": "true"})
    part = next(f"{k}/3" for k in (1, 2, 3) if not select(read_tasks(rows), shard=f"{k}/3"))
    code, said = leonardo("build", rows, "--shard", part, "--out", tmp_path / "out")
    assert code == 0 and said.strip() == f"ok: 0 rows, none of the 1 is in part {part}"
    assert json.loads((tmp_path / "out/assets.json").read_text())["ok"] is True


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--shard", "5/2"), "'5/2' is no shard"),
        (("--ids", "nobody"), "1 ids are of no row, such as nobody"),
        (("--offline",), "No base image for tiny:1 in"),
    ],
)
def test_bad_input_is_one_line(leonardo, tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", {"good": "true"})
    code, said = leonardo("build", rows, "--out", tmp_path / "out", *arguments)
    assert code == 2
    assert complaint in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
