"""Job folders of Harbor (https://harborframework.com) as evaluation records, so that Terminal-Bench results of base and
trained go into the same tables and statistics.

A job folder has the job's ``config.json`` and a folder a trial, whose ``result.json`` names task, agent, rewards of the
verifier and the exception, if one ended the trial. A reward is a verdict, whatever ended the trial. Without a reward a
trial that the agent's own time limit ended is a failure of the agent; any other (the sandbox's service failed, the
verifier did not end or wrote nothing, the job was cancelled) has no verdict: it is excluded and counted.
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue, ValidationError

from leonardo.errors import InputError
from leonardo.evaluation.records import EvaluationRecord, Reward, TaskResult
from leonardo.evaluation.statistics import pass_rate
from leonardo.files import digest_of

AGENT_EXCEPTIONS = frozenset({"AgentTimeoutError"})
"""What ends a trial by the agent's own doing: without a reward these are 0."""

_NOT_HARNESS = frozenset({"api_base", "api_key", "base_url", "model", "model_name", "temperature", "max_tokens"})
_TIMES = ("timeout_multiplier", "agent_timeout_multiplier", "verifier_timeout_multiplier")


class _Model(BaseModel):
    name: str = ""


class _Agent(BaseModel):
    name: str
    version: str = ""
    model_info: _Model | None = None


class _AgentConfig(BaseModel):
    import_path: str | None = None
    model_name: str | None = None
    override_timeout_sec: float | None = None
    max_timeout_sec: float | None = None
    kwargs: dict[str, Any] = {}
    env: dict[str, Any] = {}


class _Environment(BaseModel):
    type: str | None = None
    import_path: str | None = None


class _Config(BaseModel):
    timeout_multiplier: float | None = None
    agent_timeout_multiplier: float | None = None
    verifier_timeout_multiplier: float | None = None
    agent: _AgentConfig = _AgentConfig()
    environment: _Environment = _Environment()


class _Verifier(BaseModel):
    rewards: dict[str, float] | None = None


class _Exception(BaseModel):
    exception_type: str


class _Trial(BaseModel):
    """What is needed of a trial's ``result.json``; what else stands there is Harbor's."""

    task_name: str
    trial_name: str
    task_checksum: str
    source: str | None = None
    config: _Config = _Config()
    agent_info: _Agent
    verifier_result: _Verifier | None = None
    exception_info: _Exception | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True)
class ImportedJob:
    """A job as a record.

    Attributes:
        record: infrastructure failures are excluded in it.
        trials: how many there are.
        as_harbor_counts: the pass rate where trials without a reward count as 0, which is how Harbor's own mean does.
    """

    record: EvaluationRecord
    trials: int
    as_harbor_counts: float


def import_job(
    folder: Path,
    *,
    model: str = "",
    reward: str = "reward",
    pass_at: float = 1.0,
    agent_exceptions: Collection[str] = AGENT_EXCEPTIONS,
) -> ImportedJob:
    """Read a job folder.

    Args:
        folder: of the job.
        model: the record's name for the model; Harbor's if not given.
        reward: which of the verifier's rewards counts, where it gives several.
        pass_at: the least reward that is a pass; Terminal-Bench's are 0 or 1.
        agent_exceptions: types of exceptions that are a failure of the agent where no reward was given.

    Raises:
        InputError: no job folder, a result that is none (named), results of several models or of several agents.
    """
    trials, unread = _read_trials(folder)
    names = sorted({_model_of(trial) for trial in trials})
    if len(names) > 1:
        raise InputError(f"{folder} holds results of several models: {', '.join(names)}", "Give a job of one model")
    pins = _pins(folder, trials)
    attempts = _attempts_asked(folder, trials)
    rewards: dict[str, list[Reward]] = {}
    failures: Counter[str] = Counter({"no-result": unread} if unread else {})
    for trial in trials:
        value = _reward_of(trial, reward, pass_at)
        word = trial.exception_info.exception_type if trial.exception_info else "no-reward" if value is None else ""
        if word:
            failures[word] += 1
        if value is None and word in agent_exceptions:
            value = 0
        rewards.setdefault(trial.task_name, []).append(value)
    missing = sum(max(0, attempts - len(given)) for given in rewards.values()) - unread
    if missing > 0:
        failures["no-trial"] = missing
    family = {trial.task_name: trial.source or "harbor" for trial in trials}
    tasks = [
        TaskResult(task_id=name, family=family[name], attempts=padded, seeds=[*range(len(padded))])
        for name, given in sorted(rewards.items())
        if (padded := given + [None] * (attempts - len(given)))
    ]
    rate = pass_rate([task.attempts for task in tasks])
    counted = pass_rate([[value or 0 for value in task.attempts] for task in tasks])
    record = EvaluationRecord(
        model=model or names[0],
        pins=pins | {"attempts": attempts},
        tasks=tasks,
        pass_rate=rate.value,
        pass_rate_ci=rate.interval,
        infrastructure_failures=rate.excluded,
        failures_by_class=dict(failures),
        seconds=_seconds(trials),
    )
    return ImportedJob(record, len(trials), counted.value or 0.0)


def _read_trials(folder: Path) -> tuple[list[_Trial], int]:
    """The trials in the order in which they began, and how many folders hold no result (yet)."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder", "Name a job folder of Harbor, such as jobs/<name>")
    # a job's own config.json names no trial, so the folder above jobs is told from a job's
    places = [place for place in sorted(folder.iterdir()) if "trial_name" in _json(place / "config.json")]
    trials = [_read(place / "result.json") for place in places if (place / "result.json").is_file()]
    if not trials:
        raise InputError(
            f"{folder} holds no trial (a folder with a trial's config.json and result.json)",
            "Name the job's folder, not the one above it",
        )
    trials.sort(key=lambda trial: (trial.started_at is None, trial.started_at or datetime.min, trial.trial_name))
    return trials, len(places) - len(trials)


def _read(path: Path) -> _Trial:
    try:
        return _Trial.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path} is no trial result of Harbor: {where + ': ' if where else ''}{first['msg']}",
            "Remove the trial's folder, or run the trial again",
        ) from error


def _reward_of(trial: _Trial, name: str, pass_at: float) -> Reward:
    given = (trial.verifier_result.rewards if trial.verifier_result else None) or {}
    if not given:
        return None
    if name not in given and len(given) > 1:
        raise InputError(f"trial {trial.trial_name} has no reward {name}", f"Name one of {', '.join(sorted(given))}")
    value = given[name] if name in given else next(iter(given.values()))
    return int(value >= pass_at)


def _pins(folder: Path, trials: Sequence[_Trial]) -> dict[str, JsonValue]:
    found = {json.dumps(_pins_of(trial), sort_keys=True): trial.trial_name for trial in trials}
    if len(found) > 1:
        raise InputError(
            f"{folder} holds results under several settings, as in {' and '.join(sorted(found.values())[:2])}",
            "Give a job with one agent, one environment and one set of time limits",
        )
    checksums = sorted({(trial.task_name, trial.task_checksum) for trial in trials})
    if len(checksums) > len({name for name, _ in checksums}):
        raise InputError(f"{folder} holds several versions of one task", "Give a job of one data set")
    harbor = _json(folder / "lock.json").get("harbor")
    version = harbor.get("version") if isinstance(harbor, dict) else None
    sources = sorted({trial.source or "unknown" for trial in trials})
    return {
        **json.loads(next(iter(found))),
        "benchmark": ", ".join(sources),
        "tasks": digest_of([list(pair) for pair in checksums]),
        **({"harbor": version} if version else {}),
    }


def _pins_of(trial: _Trial) -> dict[str, JsonValue]:
    """What must be the same for two jobs to be compared; neither the model nor where it is served."""
    agent, config, name = trial.config.agent, trial.config, [trial.agent_info.name, trial.agent_info.version]
    settings = {key: value for key, value in agent.kwargs.items() if key not in _NOT_HARNESS}
    return {
        "driver": config.environment.import_path or config.environment.type or "unknown",
        "agent": " ".join(name).strip(),
        "harness": digest_of([*name, agent.import_path, settings, sorted(agent.env)]),
        "sampling": {"temperature": agent.kwargs.get("temperature"), "max_turn_tokens": agent.kwargs.get("max_tokens")},
        "limits": {
            **{limit: getattr(config, limit) for limit in _TIMES},
            "agent_timeout": agent.override_timeout_sec,
            "agent_timeout_most": agent.max_timeout_sec,
        },
    }


def _model_of(trial: _Trial) -> str:
    info = trial.agent_info.model_info
    return (info.name if info else "") or trial.config.agent.model_name or trial.agent_info.name


def _attempts_asked(folder: Path, trials: Sequence[_Trial]) -> int:
    """What the job asked for; at least as many as there are."""
    most = max(Counter(trial.task_name for trial in trials).values())
    asked = _json(folder / "config.json").get("n_attempts")
    return max(most, asked) if isinstance(asked, int) else most


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error})", "Mend or remove it") from error
    return value if isinstance(value, dict) else {}


def _seconds(trials: Sequence[_Trial]) -> float:
    """From the first trial's begin to the last one's end."""
    begun = [trial.started_at for trial in trials if trial.started_at]
    ended = [trial.finished_at for trial in trials if trial.finished_at]
    return round((max(ended) - min(begun)).total_seconds(), 3) if begun and ended else 0.0
