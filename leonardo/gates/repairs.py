"""The repair log: what rows failed of, what repaired them, and how they ended before and after, from records."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from leonardo.assets.compat import Rule
from leonardo.gates.diagnosis import Diagnosis

_SHOWN = 3  # row names in a cell


def repairs_page(records: Iterable[Diagnosis], rules: Sequence[Rule]) -> str:
    """REPAIRS.md. Of a row's records with rules, and of those without, the newest counts."""
    newest = {(record.task_id, record.with_rules): record for record in records}
    with_rules = [record for (_, used), record in newest.items() if used]
    before = {task_id: record for (task_id, used), record in newest.items() if not used}
    lines = [
        "# Repair log",
        "",
        "Written by `leonardo repairs` from the records of `leonardo diagnose`; *before* is a diagnosis with",
        "`--without-rules` of the same rows. What the classes mean: [docs/failures.md](docs/failures.md).",
        "",
        "## Repaired by a rule",
        "",
        "| symptom | class | rows hit | repair | rule | before | after |",
        "|---|---|---|---|---|---|---|",
    ]
    needless = []
    for rule in rules:
        hit = [record for record in with_rules if rule.name in record.rules]
        if not hit:
            continue
        earlier = [before[record.task_id] for record in hit if record.task_id in before]
        failed = Counter(record.failure.value for record in earlier if record.failure is not None)
        classes = ", ".join(f"{name} {count}" for name, count in sorted(failed.items())) or "-"
        cells = [rule.symptom, classes, str(len(hit)), rule.repair, f"`{rule.name}`", _passed(earlier), _passed(hit)]
        lines.append(_row(cells))
        if len(earlier) == len(hit) and all(record.passed for record in earlier):
            needless.append(f"`{rule.name}`")
    if needless:
        lines += ["", f"Every row passed without them here, too: {', '.join(needless)} (docs/compat.md says why)."]
    unused = [f"`{rule.name}`" for rule in rules if not any(rule.name in record.rules for record in with_rules)]
    if unused:
        lines += ["", f"No row here needed: {', '.join(unused)}."]
    lines += [
        "",
        "## Not repaired",
        "",
        "| symptom | class | rows hit | first rows | what to do |",
        "|---|---|---|---|---|",
    ]
    open_failures: dict[tuple[str, str], list[Diagnosis]] = {}
    for record in with_rules:
        if not record.passed:
            name = record.failure.value if record.failure else "unclassified"
            open_failures.setdefault((name, symptom(record.reason)), []).append(record)
    for (name, what), hit in sorted(open_failures.items(), key=lambda item: (-len(item[1]), item[0])):
        remedy = hit[0].failure.remedy if hit[0].failure else "a fault of ours: report it"
        shown = ", ".join(record.task_id for record in hit[:_SHOWN])
        lines.append(_row([what, name, str(len(hit)), shown, remedy]))
    return "\n".join(lines) + "\n"


def symptom(reason: str) -> str:
    """A reason without what differs from row to row: numbers, and the places below a task's own folders."""
    text = re.sub(r"\b[0-9a-f]{12,}\b", "...", reason)
    text = re.sub(r"(/(?:data|home|srv|opt|app|workspace|tmp)/)[\w./-]+", r"\1...", text)
    return re.sub(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", "N", text)[:160]


def _passed(records: Sequence[Diagnosis]) -> str:
    return f"{sum(record.passed for record in records)} of {len(records)} pass" if records else "not run"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
