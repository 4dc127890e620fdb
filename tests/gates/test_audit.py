import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from leonardo import evidence
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InputError
from leonardo.gates.audit import Audit, AuditReport, run_audit
from leonardo.gates.layers import layer_digest, search_layer
from leonardo.gates.verdicts import FILE, read_verdicts
from leonardo.options import RowOptions
from leonardo.sandbox.driver import Driver
from leonardo.site import Site
from leonardo.stages.audit import audit_command
from leonardo.stages.gate import Selection
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files

MakeTask = Callable[..., Task]

INSTRUCTION = "Read /data/in.csv and write the sum to `/data/sum.txt`. The parts are in /data/parts."
VERIFIER = """\
#!/bin/bash
# the sum and its checksum must both be there
[[ "$(cat /data/sum.txt)" == "sum of all: 123456789" ]] || exit 1
[[ "$(sha256sum < /data/sum.txt)" == "$(printf 'sum of all: 123456789\\n' | sha256sum)" ]] || exit 1
grep -q 'sum of all: 123456789' /data/sum.txt
"""
SOLUTION = """\
#!/bin/bash
total=0; while IFS=, read -r name number; do total=$((total + number)); done < /data/in.csv
printf 'sum of all: %s\\n' "$total" > /data/sum.txt
test -s /data/sum.txt && sha256sum /data/sum.txt > /dev/null
"""
DATA = "mkdir -p /data/parts /opt\nprintf 'a,123456780\\nb,9\\n' > /data/in.csv\n"


@pytest.fixture
def audit(store: AssetStore, driver: Driver, make_task: MakeTask) -> Callable[..., AuditReport]:
    """The report on a task with this set-up after the data's."""

    def run(post: str = "", **fields: object) -> AuditReport:
        defaults = {"instruction": INSTRUCTION, "tests": verifier_files(VERIFIER), "reference_solution": SOLUTION}
        reports, _ = run_audit([make_task(DATA + post, **(defaults | fields))], store, driver, jobs=1)
        return reports[0]

    return run


def test_a_clean_task_is_clean(audit: Callable[..., AuditReport]) -> None:
    report = audit(
        "ln -s in.csv /data/link\nuseless=1\nmkdir -m 1777 /var/scratch\n", seeds={"notes.txt": b"Begin with in.csv.\n"}
    )
    assert report.clean, (report.findings, report.reason)
    assert (report.literals, report.set_id, report.world_writable) == ([], [], [])
    assert report.searched >= 2, "the data and the seed"
    assert report.verdict is not None
    assert (report.verdict.failure, report.verdict.evidence) == (None, ())


def test_planted_leaks_are_found_and_judged(audit: Callable[..., AuditReport]) -> None:
    report = audit(
        f"cat > /opt/verifier <<'EOF'\n{VERIFIER}EOF\n"
        f"cat > /opt/solution <<'EOF'\n{SOLUTION}EOF\n"
        f"echo {base64.b64encode(SOLUTION.encode()).decode()} > /opt/encoded\n"
        "echo 'sum of all: 123456789' > /data/.key\n"
        "mkdir /tests; echo x > /tests/expected\n"
        "echo x > /data/solution.sh\n"
    )
    assert not report.clean
    for path, what in {
        "/opt/verifier": "lines of the verifier",
        "/opt/solution": "lines of the reference solution",
        "/opt/encoded": "in base64",
        "/data/.key": "literals that the verifier expects",
        "/tests/expected": "where a verifier or solution is put",
        "/data/solution.sh": "named as a verifier or solution is",
    }.items():
        assert any(leak.startswith(f"{path}:") and what in leak for leak in report.leaks), path
    assert not any(leak.startswith("/data/in.csv") for leak in report.leaks)
    assert report.verdict is not None
    assert report.verdict.failure is FailureClass.LEAKS


def test_a_leak_among_the_seeds(audit: Callable[..., AuditReport]) -> None:
    assert any("/workspace/key" in leak for leak in audit(seeds={"key": b"sum of all: 123456789\n"}).leaks)


def test_an_output_that_is_there_already(audit: Callable[..., AuditReport]) -> None:
    assert audit("echo none > /data/sum.txt\n").outputs == ["/data/sum.txt: there before the agent makes it"]
    kept = audit("echo none > /data/old.txt\n", instruction=f"{INSTRUCTION} Save a copy of /data/old.txt.")
    assert kept.outputs == [], "the reference solution does not touch it: it is given"


def test_secrets_and_paths_of_the_builder(
    audit: Callable[..., AuditReport], store: AssetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "builders-own-token-value")
    report = audit(
        f"mkdir -p /usr/lib/x; printf 'a\\0builders-own-token-value' > /usr/lib/x/cache\n"
        f"echo {store.root.resolve()}/packages > /etc/place\n"
        "echo 'key = AKIAABCDEFGHIJKLMNOP' > /data/config\n"
        # not in the definition as it stands in the file
        "printf 'index-url = https://%s:%s@mirror.org/simple\\n' reader letmein > /etc/pip.conf\n"
    )
    assert len(report.secrets) == 3, report.secrets
    assert "/usr/lib/x/cache: the value of the builder's $SERVICE_TOKEN" in report.secrets
    assert "/etc/place: a path of the builder" in report.secrets
    assert any(finding.startswith("/etc/pip.conf: an account in an address") for finding in report.secrets)
    assert not any("letmein" in finding or "token-value" in finding for finding in report.secrets)
    assert not any("/data/config" in finding for finding in report.secrets), "a world's own secret"


def test_surprising_modes_are_listed_and_fail_nothing(audit: Callable[..., AuditReport]) -> None:
    report = audit(
        "cp /usr/bin/cat /usr/bin/root-cat; chmod 4755 /usr/bin/root-cat\n"
        "echo x > /etc/open; chmod 666 /etc/open; mkdir -m 777 /usr/open\n"
        "mkdir /home/user; chmod -R 777 /home/user; mkdir -m 1777 /var/sticky\n"
    )
    assert report.clean, report.findings
    assert [line.split(":")[0] for line in report.set_id] == ["/usr/bin/root-cat"]
    assert [line.split(":")[0] for line in report.world_writable] == ["/etc/open", "/usr/open"]


def test_a_layer_that_changes_during_an_episode(
    store: AssetStore, driver: Driver, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in a sandbox can do that; so the store's folder is written to from outside while the episode runs."""
    task = make_task(DATA, instruction=INSTRUCTION, tests=verifier_files(VERIFIER), reference_solution=SOLUTION)
    entry = store.build([task])[0]
    layer = store.prepared(task).stack.deltas[0]
    marks = layer / "data", store.prepared(task).stack.base / "etc"

    def disturb(*_: object) -> None:
        for folder in marks:
            folder.touch()

    monkeypatch.setattr("leonardo.gates.audit.destroy", disturb)
    gate = Audit(store, driver)
    report = gate.check(task, entry)
    gate.check_layers([report])
    assert sorted(report.layers) == sorted(
        f"layer {folder.parent.name} is not what it was before the episodes" for folder in marks
    )


def test_layers_are_digested_and_searched_whole(store: AssetStore, driver: Driver, make_task: MakeTask) -> None:
    def layer_of(post: str, name: str) -> tuple[str, list[str]]:
        task = make_task(post, name)
        store.build([task])
        folder = store.prepared(task).stack.deltas[0]
        return layer_digest(folder), search_layer(folder, {"needle in": "a needle", "absent": "nothing"})

    plain = "mkdir -m 700 /a; echo needle in hay > /a/b; touch -d @1 /a/b /a /; chown 33 /a/b; chmod 600 /a/b"
    digest, found = layer_of(plain, "t1")
    assert found == ["/a/b: a needle"], "whoever may read it inside"
    assert layer_of(plain.replace("chown 33", "chown 0"), "t2")[0] != digest
    assert layer_of(plain.replace("600 /a/b", "640 /a/b"), "t3")[0] != digest


def test_a_set_up_that_fails_is_no_clean_audit(audit: Callable[..., AuditReport]) -> None:
    report = audit("exit 3\n")
    assert (report.clean, report.failure, report.verdict) == (False, FailureClass.SET_UP, None)


def test_the_command_writes_findings_verdicts_and_usable_rows(
    tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "description": INSTRUCTION,
        "container_def": f"Bootstrap: docker\nFrom: tiny:1\n\n%post\n{DATA}\n",
        "test_final_state": VERIFIER,
        "reference_solution": SOLUTION,
    }
    easy = "#!/bin/bash\n[[ -e /data/in.csv ]]\n"
    leaky = row["container_def"] + "echo 'sum of all: 123456789' > /data/.key\n"
    rows = [
        row | {"task_id": "good"},
        row | {"task_id": "easy", "test_final_state": easy},
        row | {"task_id": "leaky", "container_def": leaky},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rows))
    out = tmp_path / "out" / "audit.json"
    command = (Selection(tmp_path / "rows.jsonl"), out)
    assert audit_command(*command, site=tmp_path / "site.yaml", runs=tmp_path / "runs") == 1
    (entry,) = evidence.read(tmp_path / "runs" / evidence.LEDGER)
    assert (entry.name, entry.verdict) == ("audit", "fail")
    assert entry.says == "audit fails: 2 of 3 prepared states hold nothing that may not be there."
    verdict = json.loads(out.read_text())
    figures = verdict["figures"]
    assert (verdict["ok"], figures["rows"], figures["clean"], figures["usable"]) == (False, 3, 2, 1)
    assert out.with_name("usable.txt").read_text() == "good\n"
    found = {verdict.task_id: verdict.failure for verdict in read_verdicts(site.cache / "assets" / FILE).values()}
    assert found == {"good": None, "easy": FailureClass.VERIFIER_ALREADY_PASSES, "leaky": FailureClass.LEAKS}
    assert "NOT OK: rows 3, clean 2, of use 1" in capsys.readouterr().out
    assert audit_command(*command, site=tmp_path / "site.yaml", also=["leaks-its-answer"]) == 1
    assert out.with_name("usable.txt").read_text() == "good\nleaky\n"
    with pytest.raises(InputError, match="'no-such' is no class of failure"):
        audit_command(*command, site=tmp_path / "site.yaml", also=["no-such"])
    chosen = Selection(tmp_path / "rows.jsonl", RowOptions(ids="good"))
    assert audit_command(chosen, out, site=tmp_path / "site.yaml") == 0
