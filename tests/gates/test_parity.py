import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from leonardo import evidence
from leonardo.assets import containerroot
from leonardo.assets.containerroot import NoContainerRootError
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InfrastructureError
from leonardo.gates.parity import ParityReport, run_parity
from leonardo.gates.volatile import load_volatile
from leonardo.sandbox import apptainer
from leonardo.sandbox.driver import Driver
from leonardo.site import Site
from leonardo.stages.gate import Selection
from leonardo.stages.parity import parity_command
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files
from tests.rootfs import build_root_archive

MakeTask = Callable[..., Task]

SAME = """
mkdir -p /data/deep /home/user
echo 'line' > /data/file; chown 33:33 /data/file; chmod 4640 /data/file
ln /data/file /data/hard; ln -s file /data/link; mkfifo /data/pipe
echo scratch > /tmp/kept; echo scratch > /var/tmp/kept; touch /data/by-umask
echo 'user:x:1000:1000::/home/user:/bin/bash' >> /etc/passwd
"""
# Apptainer says so to a set-up, and nothing else does: what is below is in the full image only
PLANTED = (
    SAME
    + """
ln -s a /data/target; touch /data/owner /data/mode /data/kind /data/only-prepared; echo ab > /data/content
if [ -n "${APPTAINER_CONTAINER:-}" ]; then
  rm /data/target; ln -s b /data/target
  chown 33 /data/owner; chmod 600 /data/mode; rm /data/kind; mkdir /data/kind
  rm /data/only-prepared; touch /data/only-full
  echo ba > /data/content; echo longer > /data/size
  echo 'mallory:x:0:0::/:/bin/sh' >> /etc/passwd
  echo 'export PLANTED=1' >> "$APPTAINER_ENVIRONMENT"
else
  echo short > /data/size
fi
"""
)


@pytest.fixture(scope="session")
def tiny_root_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small root file system, with what Apptainer makes where an image lacks it."""
    path = build_root_archive(tmp_path_factory.mktemp("rootfs") / "tiny-root.tar")
    with tarfile.open(path, "a", format=tarfile.PAX_FORMAT) as archive:
        for name, mode in {"dev": 0o755, "proc": 0o755, "sys": 0o755, "run": 0o755, "var/tmp": 0o1777}.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        for name in ("hosts", "resolv.conf"):
            entry = tarfile.TarInfo(f"./etc/{name}")
            entry.mode = 0o644
            archive.addfile(entry)
    return path


@pytest.fixture(autouse=True)
def _builder() -> None:
    if apptainer.find() is None:
        pytest.skip("Apptainer is not installed")
    try:
        containerroot.own_ids()
    except NoContainerRootError as error:
        pytest.skip(f"no range of ids here: {error}")


@pytest.fixture
def compare(store: AssetStore, driver: Driver, site: Site, make_task: MakeTask) -> Callable[..., ParityReport]:
    """The gate's report on a task with this set-up."""

    def run(post: str, **fields: object) -> ParityReport:
        task = make_task(post, **fields)
        reports, pins = run_parity([task], store, driver, site, load_volatile(), timeout=60)
        assert pins["manifest"]
        assert list(store.root.glob("full-images/.*")) == [], "the full image is removed"
        return reports[0]

    return run


def test_the_same_definition_gives_the_same(compare: Callable[..., ParityReport]) -> None:
    report = compare(
        SAME,
        environment="export MINE='a b'",
        tests=verifier_files("#!/bin/bash\n[[ $MINE == 'a b' && -e /data/done ]]\n"),
        reference_solution="touch /data/done",
        initial_tests=verifier_files("#!/bin/bash\n[[ -p /data/pipe && ! -e /data/done ]]\n"),
    )
    assert report.ok, (report.differences, report.reason)
    assert report.verdicts == {"initial": "failed", "test_initial_state": "passed", "reference": "passed"}
    assert report.entries > 50
    assert report.allowed["/.singularity.d/**"] > 5


def test_planted_differences_of_every_kind_are_listed_by_path(compare: Callable[..., ParityReport]) -> None:
    report = compare(PLANTED, tests=verifier_files("#!/bin/bash\ngrep -q longer /data/size\n"))
    assert not report.ok
    assert report.failure is None, report.reason
    listed = {" ".join(line.split(", in the full")[0].split(" ")[:2]) for line in report.tree}
    assert {
        "/data/target: content",
        "/data/owner: owner",
        "/data/mode: mode",
        "/data/kind: kind",
        "/data/content: content",
        "/data/size: size",
        "/data/only-full: only",
        "/data/only-prepared: only",
        "/etc/passwd: content",
    } <= listed
    assert not any(line.startswith(("/data/file", "/tmp", "/var/tmp")) for line in report.tree)
    assert report.environment == ["$PLANTED: only in the full image (1)"]
    assert [line.split(":")[0] for line in report.users] == ["user database passwd mallory"]
    assert report.behaviour == ["verifier, initial: failed, in the full image passed"]
    assert report.differences == [*report.tree, *report.environment, *report.users, *report.behaviour]


def test_a_row_without_a_definition_has_nothing_to_be_compared_with(
    store: AssetStore, driver: Driver, site: Site
) -> None:
    task = Task("t1", "Do it.", "", verifier_files("#!/bin/bash\nfalse\n"), image="tiny:1")
    (report,), pins = run_parity([task], store, driver, site, load_volatile())
    assert report.failure is FailureClass.UNSUPPORTED
    assert pins["apptainer"]


def test_without_apptainer_it_says_so_before_anything_is_built(
    store: AssetStore, driver: Driver, site: Site, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apptainer, "PREFIX", store.root / "none")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InfrastructureError, match="Apptainer is not installed"):
        run_parity([make_task("true")], store, driver, site, load_volatile())
    assert not list(store.root.glob("layers/*"))


@pytest.mark.slow
def test_attributes_are_compared(compare: Callable[..., ParityReport]) -> None:
    report = compare(
        "touch /noted; command -v perl || exit 0\n"
        'if [ -n "${APPTAINER_CONTAINER:-}" ]; then perl -e \''
        'my ($p, $n, $v) = ("/noted", "user.note", "x"); syscall(188, $p, $n, $v, 1, 0) == 0 or die\'\nfi\n'
    )
    if not report.tree:
        pytest.skip("the host has no perl")
    assert report.tree == ["/noted: attributes none, in the full image user.note=78"]


@pytest.mark.slow
def test_other_versions_are_the_mirrors_doing(compare: Callable[..., ParityReport]) -> None:
    report = compare(
        'mkdir -p /var/lib/dpkg\nversion=1; [ -z "${APPTAINER_CONTAINER:-}" ] || version=2\n'
        "printf 'Package: tool\\nStatus: install ok installed\\nVersion: %s\\n' $version > /var/lib/dpkg/status\n"
    )
    assert report.failure is FailureClass.MIRROR
    assert report.versions == ["package tool: value 1, in the full image 2"]


@pytest.mark.slow
def test_an_image_that_cannot_be_built(compare: Callable[..., ParityReport]) -> None:
    report = compare('if [ -n "${APPTAINER_CONTAINER:-}" ]; then echo no luck; exit 9; fi\n')
    assert report.failure is FailureClass.SET_UP
    assert report.reason.startswith("the full image could not be built")


@pytest.mark.slow
def test_the_command_writes_all_differences(tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "task_id": "t1",
        "description": "Make /data/b.",
        "container_def": f"Bootstrap: docker\nFrom: tiny:1\n\n%post\n{PLANTED}\n",
        "test_final_state": "#!/bin/bash\n[[ -e /data/b ]]\n",
        "test_initial_state": "#!/bin/bash\n[[ ! -e /data/b ]]\n",
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    out = tmp_path / "out" / "parity.json"
    rows, runs = Selection(tmp_path / "rows.jsonl"), tmp_path / "runs"
    assert parity_command(rows, out, site=tmp_path / "site.yaml", runs=runs) == 1
    (entry,) = evidence.read(runs / evidence.LEDGER)
    assert entry.says == "parity fails: 0 of 1 prepared states behave as their full images."
    assert entry.records[0].path.startswith("parity-")
    verdict = json.loads(out.read_text())
    assert (verdict["ok"], verdict["figures"]["rows"], verdict["figures"]["clean"]) == (False, 1, 0)
    assert len(verdict["figures"]["tasks"][0]["tree"]) >= 9
    assert verdict["pins"]["volatile_version"] == load_volatile().version
    shown = capsys.readouterr().out
    assert "NOT OK: rows 1, clean 0" in shown
    assert "t1: /data/content: content" in shown
