"""Run upstream's trainer on prepared tasks: its command line, its environment, its watch, what it hands back."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leonardo.engine.outcome import TrainingOutcome
from leonardo.engine.upstream.checkpoint import from_upstream, to_upstream
from leonardo.engine.upstream.dataset import write_dataset
from leonardo.engine.upstream.flags import TRAINER, command_line, known_flags
from leonardo.engine.upstream.own import (
    CHECKPOINT,
    PARSERS,
    extensions,
    own_environment,
    own_flags,
    remove_stale_locks,
    require_not_own,
    saves_state,
)
from leonardo.engine.upstream.state import saved_models
from leonardo.engine.upstream.supervisor import Outcome, Plan
from leonardo.engine.upstream.symptoms import classify
from leonardo.errors import InputError
from leonardo.files import write_json
from leonardo.gates.steps import StepRecord, read_records
from leonardo.hooks.paths import LONGEST_SCRATCH, SCRATCH
from leonardo.overlay.stack import read_stack, unpatched
from leonardo.rollout.episode import EpisodeSettings
from leonardo.tasks.task import Task

PROJECT = Path(__file__).parents[3]
STEPS_FILE, LOG, OUTCOME = "steps.jsonl", "trainer.log", "outcome.json"

_LOOK = 1.0
"""Seconds between looks at a run."""

_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "RAY_ADDRESS", "TMPDIR")


@dataclass(frozen=True)
class UpstreamRun:
    """One run of the trainer.

    Attributes:
        flags: of the stage, the model and the site; what the adapter sets itself is refused in them.
        environment: variables of the site.
        ray: ``ray start``'s options of the site: name -> value.
        parser: of the model's tool calls; ``parsers``: those that upstream does not list (``leonardo.hooks.parsers``).
        episode: bounds of an episode.
        python: of upstream's environment.
        tree: upstream's checkout, with the patch stack on it.
        compiled: folder for what torch and vLLM compile, kept between runs.
        stall_after: seconds without a new step after which the run is ended; the first step may take
            ``start_within``.
    """

    flags: Mapping[str, Any]
    environment: Mapping[str, str]
    ray: Mapping[str, Any]
    parser: str
    parsers: Mapping[str, Any]
    episode: EpisodeSettings
    python: Path
    tree: Path
    compiled: Path
    stall_after: float = 300.0
    start_within: float = 600.0


def require_runnable(run: UpstreamRun) -> frozenset[str]:
    """Check, before any long work, that the environment, the patched tree and the flags are there and fit.

    Returns:
        The flags that the trainer takes.

    Raises:
        InputError: one is not; says what to do.
    """
    if not run.python.is_file():
        raise InputError(f"upstream's environment is missing ({run.python})", "Make it: make upstream-env")
    known = known_flags(run.tree)
    command_line(run.flags, known)
    require_not_own(run.flags)
    if missing := unpatched(read_stack(PROJECT / "patches"), run.tree):
        raise InputError(f"the patch stack is not on {run.tree} ({missing[0]})", "Put it there: make apply-patches")
    return known


def train(
    run: UpstreamRun,
    policy: Path,
    tasks: Sequence[Task],
    images: Mapping[str, str],
    run_folder: Path,
    seed: int,
    sandbox: Mapping[str, str],
    on_step: Callable[[StepRecord], object] = lambda record: None,
) -> TrainingOutcome:
    """Improve ``policy`` with upstream's trainer.

    Args:
        run: how.
        policy: the desk policy to begin with.
        tasks: training tasks; ``images``: task id -> ``prepared://<digest>``.
        run_folder: gets ``steps.jsonl``, the trainer's log and its checkpoints.
        seed: of the trainer.
        sandbox: variables that tell ``leonardo.hooks.sandbox`` where prepared states are and by which driver.
        on_step: called with each record once it is there; where it returns True the trainer is ended, and what it
            has trained is its last checkpoint (``save_freq``).

    Raises:
        InputError: something is missing, or the run folder holds a run already.
    """
    known = require_runnable(run)
    run_folder = run_folder.absolute()
    if (run_folder / STEPS_FILE).exists():
        raise InputError(f"{run_folder} holds a run already", "Name another run folder")
    scratch = Path(tempfile.mkdtemp(prefix="lr", dir=_place_of_scratch()))
    remove_stale_locks(extensions(run.compiled))
    try:
        plan = _plan(run, known, policy, tasks, images, run_folder, scratch, seed, sandbox)
        write_json(run_folder / "plan.json", plan.model_dump(mode="json"))
        started = time.monotonic()
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "leonardo.engine.upstream.supervisor", str(run_folder / "plan.json")],
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except BaseException:
        scratch.rmdir()  # the supervisor, which fills and removes it, never began
        raise
    stalled, stopped = "", False
    try:
        stalled, stopped = _watch(supervisor, run, run_folder, on_step)
    finally:
        supervisor.terminate()
        supervisor.wait()
    return _outcome(run_folder, stalled, stopped, time.monotonic() - started)


def _place_of_scratch() -> str:
    """Where the run's scratch folder is made: in a job's own, if that leaves room for the names of Ray's sockets."""
    jobs = os.environ.get(SCRATCH, "")
    return jobs if Path(jobs).is_dir() and 0 < len(os.fsencode(jobs)) <= LONGEST_SCRATCH - len("/lr12345678") else "/tmp"


def _plan(
    run: UpstreamRun,
    known: frozenset[str],
    policy: Path,
    tasks: Sequence[Task],
    images: Mapping[str, str],
    folder: Path,
    scratch: Path,
    seed: int,
    sandbox: Mapping[str, str],
) -> Plan:
    model = to_upstream(policy, folder)
    dataset = write_dataset(folder / "data", tasks, images, run.episode.steps)
    write_json(folder / PARSERS, dict(run.parsers))
    own = own_flags(model, dataset, folder, run.episode, seed, run.parser, state=saves_state(run.flags))
    binaries = run.python.parent
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    environment = {
        **inherited,
        **own_environment(run.tree, PROJECT, folder, run.compiled, run.environment),
        **sandbox,
        "PATH": f"{binaries}:{inherited.get('PATH', '/usr/bin:/bin')}",
        SCRATCH: str(scratch),
    }
    ray_options = [f"--{name}={value}" for name, value in run.ray.items()]
    return Plan(
        trainer=[
            str(run.python),
            str(run.tree / TRAINER),
            *command_line({**run.flags, **own}, known),
        ],
        ray=[str(binaries / "ray"), "start", "--head", "--include-dashboard=false", *ray_options],
        environment=environment,
        folder=folder,
        log=folder / LOG,
        outcome=folder / OUTCOME,
        scratch=scratch,
    )


def _watch(
    supervisor: "subprocess.Popen[bytes]",
    run: UpstreamRun,
    folder: Path,
    on_step: Callable[[StepRecord], object],
) -> tuple[str, bool]:
    """Hand on step records until the run ends. Returns the fault for which it has to be ended, or "", and whether
    ``on_step`` wants it to end."""
    seen, last = 0, time.monotonic()
    while True:
        ended = supervisor.poll() is not None
        for record in read_records(folder / STEPS_FILE, after=seen):
            seen, last = seen + 1, time.monotonic()
            if on_step(record) is True:
                return "", True
        if ended:
            return "", False
        patience = run.stall_after if seen else run.start_within
        if time.monotonic() - last > patience:
            return f"stalled: no step within {patience:.0f} s after step {seen}", False
        time.sleep(_LOOK)


def _outcome(folder: Path, stalled: str, stopped: bool, seconds: float) -> TrainingOutcome:
    try:
        ended = Outcome.model_validate_json((folder / OUTCOME).read_bytes())
    except FileNotFoundError:
        return TrainingOutcome(None, 137, "runtime: the supervisor was killed", seconds=seconds)
    code = ended.exit_code if ended.exit_code is not None else 1
    if stopped and code == 128 + signal.SIGTERM:
        code = 0  # it ended as it was asked to
    reason = stalled or ended.reason or ("" if code == 0 else classify(folder / LOG, code))
    saved = saved_models(folder / CHECKPOINT)
    policy = from_upstream(saved[-1], folder / "policy") if saved else None
    return TrainingOutcome(policy, code, reason, tuple(ended.leftovers), round(seconds, 1))
