"""Job folders in Harbor's format, written by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

AGENT = {"name": None, "import_path": "my_agent:Agent", "kwargs": {"api_base": "http://a/v1", "max_format_errors": 8}}
Outcome = float | str | None


def write_job(
    folder: Path, trials: Mapping[str, Sequence[Outcome]], *, attempts: int = 2, model: str = "small", **changes: Any
) -> Path:
    """A job whose ``trials`` are rewards, names of exceptions, ``"Name:0.0"`` for both, or None for neither."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"job_name": folder.name, "n_attempts": attempts}))
    (folder / "lock.json").write_text(json.dumps({"schema_version": 1, "harbor": {"version": "0.6.6"}}))
    (folder / "result.json").write_text(json.dumps({"n_total_trials": sum(map(len, trials.values()))}))
    for task, outcomes in trials.items():
        for number, outcome in enumerate(outcomes):
            write_trial(folder, task, number, outcome, model, **changes)
    return folder


def write_trial(job: Path, task: str, number: int, outcome: Outcome, model: str = "small", **changes: Any) -> Path:
    """One trial; ``changes`` go into its result."""
    name = f"{task}__{number}"
    word, _, value = outcome.partition(":") if isinstance(outcome, str) else ("", "", outcome)
    reward = None if value in ("", None) else float(value)
    config = {
        "trial_name": name,
        "timeout_multiplier": 1.0,
        "agent": AGENT | {"model_name": f"openai/{model}"},
        "environment": {"type": "docker"},
    }
    result = {
        "task_name": task,
        "trial_name": name,
        "task_checksum": f"{len(task):064d}",
        "source": "own-bench",
        "config": config,
        "agent_info": {"name": "mine", "version": "1.0", "model_info": {"name": model, "provider": "openai"}},
        "verifier_result": None if reward is None else {"rewards": {"reward": reward}},
        "exception_info": {"exception_type": word, "exception_message": "x"} if word else None,
        "started_at": f"2026-01-01T00:00:{number:02d}Z",
        "finished_at": f"2026-01-01T00:01:{number:02d}Z",
    }
    place = job / name
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    (place / "result.json").write_text(json.dumps(result | changes))
    return place
