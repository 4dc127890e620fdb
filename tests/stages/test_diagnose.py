import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leonardo.cli import app
from leonardo.errors import InputError
from leonardo.site import Site
from leonardo.stages.compat import explain_command, list_command
from leonardo.stages.diagnose import diagnose_command

SOUND = {
    "task_id": "sound",
    "description": "Make /data/b.",
    "container_def": "Bootstrap: docker\nFrom: tiny:1\n\n%post\n    sudo mkdir -p /data\n",
    "test_final_state": "#!/bin/bash\n[[ -e /data/b ]]\n",
    "reference_solution": "touch /data/b\n",
}
FAULTY = SOUND | {"task_id": "faulty", "test_final_state": "#!/no/such/interpreter\n"}
PLAIN = SOUND | {"task_id": "plain", "container_def": "Bootstrap: docker\nFrom: tiny:1\n\n%post\n    mkdir /data\n"}
MOUNTS = SOUND | {"task_id": "mounts", "container_def": SOUND["container_def"] + "    mount /a /b\n"}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (SOUND, FAULTY, PLAIN, MOUNTS)))
    return path


def test_rows_are_diagnosed_and_the_log_written(
    rows: Path, tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    out, runs = tmp_path / "out" / "diagnose.json", tmp_path / "runs"
    assert diagnose_command(rows, out, runs, site=tmp_path / "site.yaml") == 0
    verdict = json.loads(out.read_text())
    names = ("rows", "built", "passed", "classified", "unclassified", "finished")
    assert [verdict["figures"][name] for name in names] == [
        4,
        3,
        2,
        {"privilege": 1, "verifier-broken": 1},
        0,
        True,
    ]
    assert verdict["pins"]["rules"]
    assert "ok: rows 4, built 3, passed 2, unclassified 0" in capsys.readouterr().out
    before = diagnose_command(rows, out, runs, site=tmp_path / "site.yaml", with_rules=False)
    assert before == 0  # everything has a class there, too
    figures = json.loads(out.read_text())["figures"]
    assert (figures["rows"], figures["classified"]) == (3, {"set-up": 3})  # no rule touches the fourth
    page = (runs / "diagnose" / "REPAIRS.md").read_text()
    (row,) = [line for line in page.splitlines() if "| `sudo-as-root@1` |" in line]
    assert "| set-up 3 | 3 |" in row
    assert row.endswith("| 0 of 3 pass | 1 of 3 pass |")
    result = CliRunner().invoke(app, ["repairs", "--runs", str(runs), "--page", str(tmp_path / "REPAIRS.md")])
    assert result.exit_code == 0
    assert (tmp_path / "REPAIRS.md").read_text() == page


def test_which_rules_concern_a_row(rows: Path, tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    def explained(task_id: str) -> str:
        assert explain_command(task_id, rows, site=tmp_path / "site.yaml") == 0
        return capsys.readouterr().out

    assert "sudo-as-root@1: line 1: sudo mkdir -p /data" in explained("sound")
    assert "plain: no rule applies" in explained("plain")
    mounts = explained("mounts")
    assert "mounts-refused@1: the site lacks mounts; line 2: mount /a /b" in mounts
    assert "not run: privilege" in mounts
    with pytest.raises(InputError, match="no task absent"):
        explain_command("absent", rows, site=tmp_path / "site.yaml")


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_command() == 0
    assert "sudo and ptys" in " ".join(capsys.readouterr().out.split())
