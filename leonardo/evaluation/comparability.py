"""May two figures be compared? All reasons why not, in words: harness, tasks, prepared states, budget, sampling."""

from collections.abc import Iterator
from typing import Any

from leonardo.evaluation.compare import ABSENT, differences
from leonardo.evaluation.published import Benchmark
from leonardo.evaluation.records import EvaluationRecord
from leonardo.files import flat

WITHOUT_VERDICT = "without_verdict"
"""The pin that says what becomes of attempts without a verdict; records of ours leave them out."""

_WORDS = {
    "harness": "the harness (prompts, tool, how an episode goes)",
    "agent": "the agent",
    "driver": "the sandboxes",
    "assets": "the prepared states",
    "tasks": "the tasks",
    "benchmark": "the benchmark",
    "attempts": "attempts a task",
    "seed": "the evaluation's seed",
    "interface": "how the policy is asked",
    "harbor": "the version of Harbor",
    WITHOUT_VERDICT: "what becomes of attempts without a verdict",
    "sampling.temperature": "the sampling temperature",
    "sampling.top_p": "the share of the distribution that is sampled from",
    "sampling.max_turn_tokens": "the budget of a turn, in tokens",
    "limits.turns": "the limit of turns",
    "limits.context_tokens": "the length of the context, in tokens",
    "limits.command_timeout": "the time limit of a command",
    "limits.verifier_timeout": "the time limit of the verifier",
    "limits.agent_timeout": "the time limit of the agent",
    "limits.timeout_multiplier": "the factor on time limits",
}


def reasons(left: EvaluationRecord, right: EvaluationRecord | Benchmark) -> list[str]:
    """Why figures of ``left`` and ``right`` may not be compared, a sentence each; empty where they may.

    Of a published benchmark only what its sources say can differ; what they do not say is a reason of its own.
    """
    if isinstance(right, Benchmark):
        return [*_against_published(left, right)]
    found: list[str] = []
    several: dict[str, list[str]] = {}
    for difference in differences(left, right):
        if difference.kind == "pin":
            found.append(_sentence(difference.name, difference.left, difference.right))
        else:
            several.setdefault(difference.kind, []).append(difference.name)
    for kind, names in several.items():
        what = "stand on one side only" if kind == "task" else "were attempted with other seeds"
        found.append(f"{len(names)} tasks {what}, such as {names[0]}")
    return found


def _against_published(record: EvaluationRecord, benchmark: Benchmark) -> Iterator[str]:
    ours = flat({WITHOUT_VERDICT: "left out"} | record.pins)
    unsaid = []
    for name, value in flat(benchmark.settings).items():
        if value is None:
            unsaid.append(_words(name))
        elif name == WITHOUT_VERDICT and not record.infrastructure_failures:
            continue  # there is none, so both ways of counting give the same
        elif ours.get(name, ABSENT) != value:
            yield _sentence(name, ours.get(name, ABSENT), value)
    if unsaid:
        yield f"not said by the source: {', '.join(unsaid)}"


def _sentence(name: str, left: Any, right: Any) -> str:
    return f"{_words(name)}: {_short(left)} against {_short(right)}"


def _words(name: str) -> str:
    return _WORDS.get(name, name.replace("_", " "))


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 and all(letter in "0123456789abcdef" for letter in text) else text
