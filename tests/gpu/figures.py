"""What a stage took on GPUs: memory by phase and process, seconds and tokens of a step; from what ``machine.py`` left.

Usage: ``python -m tests.gpu.figures STEP_FOLDER`` (a step's unpacked archive) prints them as JSON.
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leonardo.errors import InputError
from leonardo.gates.steps import StepRecord, read_records

_PROCESSES = {"VLLM::EngineCore": "engine", "ray::PolicyTrainer": "learner", "python -m leonardo": "stage"}
"""What a command line holds -> whose process it is."""


def figures(folder: Path) -> dict[str, Any]:
    """Of one step of ``machine.py``. Raises InputError where it recorded no training."""
    records = [record for path in folder.glob("runs/*/steps.jsonl") for record in read_records(path)]
    if not records:
        raise InputError(f"{folder} holds no step records", "Name the folder of a step, unpacked")
    later = records[1:] or records
    samples = (folder / "gpu-processes.csv").read_text(encoding="utf-8").splitlines()
    return {
        "gpu_memory_gb": memory_by_phase(samples),
        "learner_allocated_gb": _largest(record.memory for record in records),
        "seconds_first_step": dict(records[0].times),
        "seconds_later_steps": {
            name: round(statistics.median(record.times[name] for record in later), 3) for name in later[0].times
        },
        "tokens_a_step": _median(later, _tokens),
        "tokens_a_second_of_a_step": _median(later, lambda record: _tokens(record) / record.times["step"]),
        "tokens_a_second_of_the_update": _median(later, lambda record: _tokens(record) / record.times["update"]),
    }


def memory_by_phase(samples: Iterable[str]) -> dict[str, dict[str, list[float]]]:
    """[at the phase's end, largest] in GB (10^9 bytes), by phase and process.

    Args:
        samples: lines ``time, bus, pid, MiB, command line, phase``, in their order.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for line in samples:
        _, _, _, mebibytes, command, phase = line.split(", ")
        owner = next((name for part, name in _PROCESSES.items() if part in command), None)
        if owner is not None and mebibytes.isdecimal():
            now = round(int(mebibytes) * 2**20 / 1e9, 2)
            largest = max(now, found[phase].get(owner, [0.0, 0.0])[1])
            found[phase][owner] = [now, largest]
    return dict(found)


def _largest(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for memory in each:
        found |= {name: max(value, found.get(name, 0.0)) for name, value in memory.items()}
    return found


def _tokens(record: StepRecord) -> float:
    return float(sum(record.tokens.values()))


def _median(records: Sequence[StepRecord], of: Callable[[StepRecord], float]) -> float:
    return round(statistics.median(map(of, records)), 3)


def main() -> int:
    """Print the figures of a folder."""
    try:
        print(json.dumps(figures(Path(sys.argv[1])), indent=1))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
