"""The stage behind ``leonardo families``: each family's format, template, tokens and mask held to what they promise."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from leonardo.engine.desk.dialogue import Dialogue, dress
from leonardo.engine.desk.masks import mask_error
from leonardo.engine.desk.policy import make_tokenizer
from leonardo.errors import InputError
from leonardo.files import require_writable, write_verdict
from leonardo.gates.agreement import TOOLS, TYPED_CALLS, Agreement, Question, ask_vllm, compare
from leonardo.gates.formats import damaged_turns, fuzzed_commands, misread, round_trip
from leonardo.rollout.families import Family, family_names, load_family
from leonardo.rollout.tool_calls import render_tool_call
from leonardo.tables import Table, open_console

DESK_SIZE = "desk size"
_MASKS = 60
_DAMAGED_FOR_VLLM = 300


@dataclass
class FamilyCheck:
    """What was found of a family.

    Attributes:
        tokenizer: which one it was checked with: made at desk size, or a real one's folder.
        carried, refused: fuzzed commands that came back unchanged, and that the renderer refuses.
        damaged: damaged turns that were refused.
        masks: conversations whose mask was compared.
        vllm: the comparison with vLLM's parser; None where there was no vLLM.
        faults: everything that must not be; none for a pass.
    """

    family: str
    tokenizer: str = DESK_SIZE
    carried: int = 0
    refused: int = 0
    damaged: int = 0
    masks: int = 0
    vllm: Agreement | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, Any]:
        """For machines."""
        found: dict[str, Any] = {name: getattr(self, name) for name in ("tokenizer", "carried", "refused", "damaged")}
        found |= {"masks": self.masks, "faults": self.faults[:20]}
        if self.vllm is not None:
            stricter, explained = dict(self.vllm.stricter), dict(self.vllm.explained)
            found["vllm"] = {"same": self.vllm.same, "stricter": stricter, "explained": explained}
        return found


def check_families(
    families: Sequence[Family],
    *,
    seed: int = 1,
    count: int = 2000,
    python: Path | None = None,
    tokenizers: Mapping[str, Path] | None = None,
) -> list[FamilyCheck]:
    """Check every family.

    Args:
        families: which.
        seed: of the fuzz.
        count: fuzzed commands, and damaged turns.
        python: with vLLM; without it, the comparison is left out.
        tokenizers: family -> folder of a real tokenizer; others are made at desk size.
    """
    commands = fuzzed_commands(count, seed)
    checks, questions = [], []
    with tempfile.TemporaryDirectory(prefix="leonardo-families-") as scratch:
        for family in families:
            folder = (tokenizers or {}).get(family.name)
            tokenizer = _tokenizer(family, folder)
            check = FamilyCheck(family.name, str(folder or DESK_SIZE))
            _check_tokens(check, family, Dialogue(tokenizer), commands, seed)
            checks.append(check)
            place = Path(scratch) / family.name
            tokenizer.save_pretrained(place)
            questions.append(Question(family.upstream.parser, place, _turns(family, commands, seed)))
        if python is not None:
            answers = ask_vllm(python, questions)
            for check, family, question, answer in zip(checks, families, questions, answers, strict=True):
                check.vllm = compare(family.tool_format, question.turns, answer, family.upstream.differences)
                check.faults += [f"unlike vLLM: {one}" for one in check.vllm.unexplained]
    return checks


def _tokenizer(family: Family, folder: Path | None) -> PreTrainedTokenizerFast:
    if folder is None:
        return make_tokenizer(["Solve it. ls -l /data"], 700, family)
    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"{folder} holds no tokenizer (tokenizer.json)", "Name a model's folder")
    return dress(AutoTokenizer.from_pretrained(folder), family, "brief")


def _check_tokens(check: FamilyCheck, family: Family, dialogue: Dialogue, commands: Sequence[str], seed: int) -> None:
    trip = round_trip(family.tool_format, commands, lambda text: dialogue.text(dialogue.turn(text)))
    check.carried, check.refused = trip.carried, trip.refused
    check.damaged, wrong = misread(family.tool_format, damaged_turns(family.tool_format, len(commands), seed))
    check.faults += [*trip.wrong, *wrong]
    random = Random(seed)
    marks = dialogue.tokenizer.all_special_tokens
    usable = [command for command in commands if len(command) < 1000 and _plain(command, family, marks)]
    for _ in range(min(_MASKS, len(commands))):
        turns = [(random.choice(usable), random.choice(usable)) for _ in range(random.randrange(1, 4))]
        if error := mask_error(dialogue, random.choice(usable), turns):
            check.faults.append(f"{error}: {turns[0]!r}"[:300])
        check.masks += 1


def _plain(command: str, family: Family, marks: Sequence[str]) -> bool:
    """A chat template cannot tell a control token in a command from its own; a rollout's pieces can."""
    try:
        render_tool_call(command, family.tool_format)
        command.encode()
    except ValueError:
        return False
    return not any(mark in command for mark in marks)


def _turns(family: Family, commands: Sequence[str], seed: int) -> list[str]:
    turns = [family.tool_format.render(calls, TOOLS) for calls in TYPED_CALLS]
    for command in commands:
        try:
            turns.append(render_tool_call(command, family.tool_format))
        except ValueError:
            continue
    return turns + [turn for _, turn in damaged_turns(family.tool_format, _DAMAGED_FOR_VLLM, seed)]


def check_command(
    names: Sequence[str], out_path: Path, *, seed: int, count: int, python: Path | None, tokenizers: Sequence[str]
) -> int:
    """Check families, print a line for each, write ``out_path``. Returns 0 where nothing is wrong.

    Args:
        names: names or files of families; all that are shipped where there is none.
        out_path: of the verdict.
        seed, count, python: see :func:`check_families`.
        tokenizers: ``FAMILY=FOLDER`` each.
    """
    require_writable(out_path.parent)
    families = [load_family(name) for name in names or family_names()]
    folders = _folders(tokenizers, [family.name for family in families])
    checks = check_families(families, seed=seed, count=count, python=python, tokenizers=folders)
    _show(checks, open_console())
    ok = not any(check.faults for check in checks)
    pins = {family.name: family.digest for family in families} | {"seed": seed, "count": count}
    write_verdict(out_path, ok, {check.family: check.figures for check in checks}, pins)
    return 0 if ok else 1


def _folders(options: Sequence[str], checked: Sequence[str]) -> dict[str, Path]:
    pairs = [option.partition("=") for option in options]
    for name, _, folder in pairs:
        if not folder:
            raise InputError(f"--tokenizer {name} names no folder", "Write FAMILY=FOLDER")
        if name not in checked:
            raise InputError(f"--tokenizer {name}: that family is not checked", f"Checked: {', '.join(checked)}")
    return {name: Path(folder) for name, _, folder in pairs}


def _show(checks: Sequence[FamilyCheck], console: Console) -> None:
    table = Table("family", "carried", "refused", "damaged refused", "masks", "as vLLM", "stricter", "ok")
    for check in checks:
        same = [str(check.vllm.same), str(check.vllm.stricter.total())] if check.vllm else ["-", "-"]
        counts = [str(number) for number in (check.carried, check.refused, check.damaged, check.masks)]
        table.add_row(check.family, *counts, *same, "[red]no[/red]" if check.faults else "yes")
    console.print(table)
    for check in checks:
        lines = [] if check.tokenizer == DESK_SIZE else [f"with the tokenizer in {check.tokenizer}"]
        lines += check.faults[:5]
        if check.vllm is not None:
            lines += [f"vLLM differs, {number} times: {why}" for why, number in check.vllm.explained.items()]
            lines += [
                f"refused, and taken by vLLM, {number} times: {why}" for why, number in check.vllm.stricter.items()
            ]
        for line in lines:
            console.print(f"{check.family}: {line}", markup=False, highlight=False, soft_wrap=True)
    if any(check.vllm is None for check in checks):
        console.print("No comparison with vLLM: name a Python that has it (--upstream-python).")
