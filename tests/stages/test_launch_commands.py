"""The command line of launch: what is odd is one line, and what needs no trainer does not wait for PyTorch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leonardo.cli import app
from leonardo.jobs import slurm

ROOT = Path(__file__).parents[2]
_SET = {"WORK": "/work", "SCRATCH": "/scratch"}

_WITHOUT_TORCH = """
import sys
from leonardo.cli import main
sys.argv[0] = "leonardo"
try:
    main()
finally:
    loaded = {"torch", "transformers", "accelerate", "scipy"} & set(sys.modules)
    print("loaded:", *sorted(loaded), file=sys.stderr)
"""


def run(*arguments: str, program: str = "from leonardo.cli import main; main()", **variables: str):
    environment = {name: value for name, value in os.environ.items() if name not in _SET} | variables
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("launch", "--help"),
        ("launch", "render", "smoke"),
        ("launch", "render", "reproduce"),
        ("launch", "check", "smoke", "--account", "x"),
        ("launch", "follow", "/none"),
        ("patches", "check"),
        ("compat", "list"),
        ("stage", "plan"),
        ("doctor", "--help"),
    ],
    ids=" ".join,
)
def test_starts_without_torch(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """None of these trains anything."""
    out = ("--out", str(tmp_path)) if "check" in arguments else ()
    done = run(*arguments, *out, program=_WITHOUT_TORCH, **_SET)
    assert done.stderr.splitlines()[-1] == "loaded:", done.stderr


def test_render_for_elsewhere_says_what_is_not_set() -> None:
    """In one line beside the script, which is whole; and says nothing where all is set."""
    done = run("launch", "render", "smoke", "calibrate")
    assert done.returncode == 0 and done.stdout.count("#!/bin/bash") == 2 and "$WORK/tmax-leonardo" in done.stdout
    assert done.stderr == (
        "leonardo: not set here, they stand in the script by name: $SCRATCH, $WORK; "
        "no account is named, and the script has none: LEONARDO_ACCOUNT=..., or --account\n"
    )
    assert "/$WORK" not in done.stdout
    done = run("launch", "render", "smoke", **_SET, LEONARDO_ACCOUNT="project")
    assert done.returncode == 0 and done.stderr == "" and "$WORK" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("smoke", "--shape", "H800"), "model desk has no shape for H800. It has: A100-64GB"),
        (
            ("reproduce", "--shape", "H800"),
            "model qwen35_2b has no shape for H800. It has: A",
        ),
        (("smoke", "calibrate", "smoke"), "stage smoke is there twice. Name each stage of a chain once"),
        (("smoke", "--runs", "{file}"), "--runs: {file} is no folder"),
        (("smoke", "--runs", "{file}/below"), "--runs: {file} is no folder"),
        (("smoke", "--folder", "{file}"), "--folder: {file} is no folder"),
        (("smoke", "--site", "{site}"), "{site}:2: nothing: unknown setting"),
        (("{stage}",), "{stage}:3: job.minuts: unknown setting"),
        (("smoke", "--model", "{model}"), "{model}:4: shapes.A.learner: unknown setting"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
@pytest.mark.parametrize("command", ["render", "submit"])
def test_odd_arguments(
    command: str, arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that names it, and nothing is printed or queued."""
    places = {name: tmp_path / f"{name}.yaml" for name in ("site", "stage", "model")} | {"file": tmp_path / "file"}
    places["file"].write_text("")
    places["site"].write_text("name: x\nnothing: 1\n")
    places["stage"].write_text("name: x\nshows: y\njob: {minutes: 3, minuts: 4}\ncriteria: []\n")
    places["model"].write_text("name: x\nstart: desk\nshapes:\n  A: {nodes: 1, learner: [1], engines: 1, reason: y}\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner(env=_SET).invoke(app, ["launch", command, *(word.format(**places) for word in arguments)])
    assert done.exit_code == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"leonardo: {words.format(**places)}"), line


def test_a_folder_of_runs_that_cannot_be_written_is_a_finding(tmp_path: Path) -> None:
    """Before the queue, with the reason."""
    done = run("launch", "check", "smoke", "--runs", "/proc/runs", "--out", str(tmp_path), **_SET)
    assert done.returncode == 1
    findings = json.loads((tmp_path / "launch-check.json").read_text())["figures"]["findings"]
    assert any(entry["id"] == "paths.writable" and entry["what"].startswith("/proc/runs/") for entry in findings)


def test_a_model_that_the_desk_cannot_hold_is_found_before_the_queue(tmp_path: Path) -> None:
    """Neither in memory nor on disk; one that is made on the way is no question."""
    wanted = {"offline.model": "Qwen3.5-9B is not on this machine", "nodes.memory": "about 147 GiB for the 9.7 billion"}
    for model, there in (("qwen35_9b", True), ("desk", False)):
        variables = {**_SET, "LEONARDO_CACHE": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
        run("launch", "check", "smoke", "--model", model, "--engine", "desk", "--out", str(tmp_path), **variables)
        findings = json.loads((tmp_path / "launch-check.json").read_text())["figures"]["findings"]
        said = {entry["id"]: entry["what"] for entry in findings}
        for name, words in wanted.items():
            assert (words in said.get(name, "")) is there, said


def test_what_is_no_job_is_not_waited_for() -> None:
    """Slurm would take it and wait for ever."""
    done = run("launch", "submit", "smoke", "--after", "yesterday", **_SET)
    assert done.returncode == 2
    assert done.stderr == "leonardo: 'yesterday' is no job's id. Give the number that submit names\n"


def test_all_that_sbatch_says_is_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line once, without its program's name."""
    program = tmp_path / "sbatch"
    program.write_text(
        "#!/bin/sh\nprintf 'sbatch: error: Batch job submission failed.\\nsbatch: error: Invalid account\\n"
        "sbatch: error: Invalid account\\nallocation failure: more words\\n' >&2; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    said = slurm.test_only(tmp_path / "job.sh")
    assert said == "Batch job submission failed; Invalid account; allocation failure: more words"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert slurm.test_only(tmp_path / "job.sh") == "sbatch --test-only ended with 9"
