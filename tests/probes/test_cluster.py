"""What the probes of a cluster say without one: each where the thing is well, and where it is broken."""

import os
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leonardo.cluster import ApptainerLimits, Cluster, Roots
from leonardo.errors import InputError
from leonardo.probes import cluster
from leonardo.site import load_site
from leonardo.stages.doctor import _space, doctor_command
from tests.probes.worlds import Entered, World, stand_in


@pytest.fixture
def leonardo() -> Cluster:
    """The shipped site's."""
    found = load_site("leonardo").cluster
    assert found is not None
    return found


def test_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leonardo: Cluster) -> None:
    """Not here; here, and its controller does not answer."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cluster.scheduler().what == "sbatch is not here"
    for name in ("sbatch", "sinfo", "scontrol"):
        stand_in(
            tmp_path, monkeypatch, name, "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1"
        )
    words = "does not answer (slurm_load_partitions: Unable to contact slurm controller)"
    assert (cluster.scheduler().state, cluster.scheduler().what) == ("missing", f"sinfo {words}")
    assert cluster.partitions(leonardo).what == f"scontrol {words}"


def test_apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What make apptainer puts into the project is found as the drivers find it; a broken one is quoted."""
    from leonardo.sandbox import apptainer

    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(apptainer, "PREFIX", tmp_path / "none")
    monkeypatch.setattr(apptainer.shutil, "which", lambda name: None)
    assert cluster.apptainer(ApptainerLimits()).what == "apptainer is not here"
    monkeypatch.undo()
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(apptainer, "PREFIX", tmp_path)
    stand_in(tmp_path / "bin", monkeypatch, "apptainer", "echo apptainer version 1.4.0")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert cluster.apptainer(ApptainerLimits()).what == "1.4.0"
    stand_in(tmp_path / "bin", monkeypatch, "apptainer", "echo 'FATAL: no starter' >&2; exit 255")
    found = cluster.apptainer(ApptainerLimits())
    assert found.state == "degraded" and "FATAL: no starter" in found.what


class _Proxy(socketserver.StreamRequestHandler):
    """Lets a client through, or refuses, as the server's ``answer`` says."""

    def handle(self) -> None:
        asked = self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        self.server.asked.append(asked.decode().split()[:2])  # type: ignore[attr-defined]
        self.wfile.write(self.server.answer)  # type: ignore[attr-defined]
        # what follows is no TLS: reached all the same
        self.wfile.write(b"" if b" 4" in self.server.answer else b"nothing of the kind\r\n" * 8)  # type: ignore[attr-defined]


@pytest.fixture
def proxy() -> Iterator[socketserver.TCPServer]:
    """A proxy on this machine."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Proxy) as server:
        server.asked, server.answer = [], b"HTTP/1.1 200 Connection established\r\n\r\n"  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_network(monkeypatch: pytest.MonkeyPatch, proxy: socketserver.TCPServer) -> None:
    """What the site says decides whether it is well that nothing answers; the proxy that is suggested is taken."""
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert cluster.network(False, "127.0.0.1", 9).state == "ok"
    found = cluster.network(True, "127.0.0.1", 9)
    assert found.state == "degraded" and "https_proxy" in found.remedy
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.server_address[1]}")
    assert cluster.network(True, "site.invalid").state == "ok"
    assert proxy.asked == [["CONNECT", "site.invalid:443"]]  # type: ignore[attr-defined]
    found = cluster.network(False, "site.invalid")
    assert found.state == "degraded" and "by mistake" in found.costs
    proxy.answer = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"  # type: ignore[attr-defined]
    assert cluster.network(True, "site.invalid").state == "degraded"


def test_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another clock is told: this process's is, since a file system's cannot be set here."""
    assert cluster.clock(tmp_path / "not" / "there").state == "ok"
    assert cluster.clock(Path("$WORK/leonardo")).what == "$WORK/leonardo is not set here"
    now = time.time
    monkeypatch.setattr(cluster.time, "time", lambda: now() + 90)
    found = cluster.clock(tmp_path)
    assert found.state == "degraded" and found.what.startswith("90 s from ")


_ASK = """
import sys
from pathlib import Path
from leonardo.cluster import Roots
from leonardo.jobs.space import space_findings
from leonardo.probes import cluster
place = Path(sys.argv[1])
for one in (cluster.clock(place), cluster.scratch(place, 0.001)):
    print(one.id, one.state, one.what)
for finding in space_findings(Roots(shared=place, scratch=place, least_free=float(sys.argv[2]), least_files=1)):
    print(finding.id, finding.what)
"""


@pytest.mark.parametrize(
    ("lines", "place", "words"),
    [
        (
            ("mount -t tmpfs -o ro tmpfs /mnt",),
            "/mnt",
            ("clock degraded", "scratch missing", "Read-only"),
        ),
        (("mount -t tmpfs -o mode=700 tmpfs /mnt",), "/mnt/x/y", ("clock degraded", "scratch missing", "space.quota")),
        (("mount -t tmpfs -o size=2m,mode=1777 tmpfs /mnt",), "/mnt", ("clock ok", "scratch ok", "space.quota")),
    ],
    ids=["read-only", "not ours", "small"],
)
def test_folders_of_a_plain_user(entered: Entered, lines: tuple[str, ...], place: str, words: tuple[str, ...]) -> None:
    """A folder that cannot be used is told as such; with room asked for that is there, nothing is."""
    libraries = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    paths = {"PYTHONPATH": f"{entered.folder}:{libraries}"}
    done = entered.run(World(lines, variables=paths), "plain", entered.python, "-c", _ASK, place, "0.5")
    if "No module named" in done.stderr or "Permission denied: '" in done.stderr.split("\n")[-1]:
        pytest.skip("a plain user cannot read the project's environment")
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words), done.stdout
    if place == "/mnt" and "size" in lines[0]:
        done = entered.run(World(lines, variables=paths), "plain", entered.python, "-c", _ASK, place, "0.001")
        assert "space" not in done.stdout


def test_scratch(tmp_path: Path) -> None:
    """Enough, too little, and not there; a smaller ``tmp_size`` in the site mends it."""
    assert cluster.scratch(tmp_path, 10**9).state == "degraded"
    assert cluster.scratch(tmp_path, 0.001).state == "ok"
    assert cluster.scratch(tmp_path / "none", 1).state == "missing"


def test_cores() -> None:
    """Those of the affinity."""
    script = "from leonardo.probes.cluster import cores; print(cores().what)"
    done = subprocess.run(["taskset", "-c", "0", sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == f"1 of {os.cpu_count()} may be used"


def test_space_of_a_variable_that_is_not_set() -> None:
    """Is not called well."""
    found = list(_space(Roots(shared=Path("$WORK/x"), scratch=Path("/tmp"), least_free=0, least_files=0)))
    assert [(one.state, one.what) for one in found] == [("degraded", "$WORK/x is not set here")]


def test_node_of_a_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor asks for a whole node of it, and begins with the site's set-up; a line that fails is named."""
    site = tmp_path / "site.yaml"
    site.write_text(
        "name: two\n"
        "cluster:\n"
        "  account: project\n"
        "  pools:\n"
        "    first: {partition: one, cores: 2, memory: 2, tmp_size: 1}\n"
        "    other: {partition: two, cores: 6, memory: 7.5, gpus: 4, gpu: none, tmp_size: 1}\n"
        "  qualities: [{name: normal, most_minutes: 60, most_nodes: 2}]\n"
        f"  roots: {{shared: {tmp_path}, scratch: {tmp_path}}}\n"
        "  set_up: ['mark() { MARK=seen; }', 'mark # it stays', 'test \"$MARK\" = other']\n"
    )
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    run = 'until [ "$1" = bash ]; do shift; done; exec "$@"'
    stand_in(tmp_path, monkeypatch, "srun", f'echo "$@" > {tmp_path}/asked; {run} 2> {tmp_path}/said')
    assert doctor_command(tmp_path / "doctor.json", str(site), node=True, pool="other") == 3
    asked = (tmp_path / "asked").read_text()
    for option in ("--partition=two", "--cpus-per-task=6", "--mem=7680M", "--gres=gpu:4", "--pool other"):
        assert option in asked
    assert (tmp_path / "said").read_text() == 'set_up of the site failed at: test "$MARK" = other\n'
    with pytest.raises(InputError, match="no pool none"):
        doctor_command(tmp_path / "doctor.json", str(site), node=True, pool="none")
