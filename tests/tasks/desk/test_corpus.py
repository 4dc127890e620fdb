"""Generation: the same everywhere, balanced, the splits apart, and rows that the row reader takes."""

from collections import Counter
from random import Random

import pytest

from leonardo.errors import InputError
from leonardo.tasks.definition import parse_definition
from leonardo.tasks.desk import FAMILIES, describe, generate, split_of, write_rows
from leonardo.tasks.rows import read_tasks

GOLDEN = [
    ("desk-write-file-c40576f3", "Create the file /data/farm/falcon.txt with the content lucky."),
    ("desk-append-line-672d0cab", "Add proud as the last line of /data/farm/bear.txt."),
]


def ids(*arguments, **options):
    return [task.id for task in generate(*arguments, **options)]


def test_generation_is_the_same_on_every_machine_and_python():
    tasks = generate("train", 2, seed=0)
    assert [(task.id, task.instruction) for task in tasks] == GOLDEN
    assert tasks[0].task.digest == generate("train", 1, seed=0)[0].task.digest


def test_a_smaller_count_is_a_prefix_and_a_seed_changes_the_draw():
    assert ids("train", 60, seed=3) == ids("train", 100, seed=3)[:60]
    assert len(set(ids("train", 60, seed=3)) & set(ids("train", 60, seed=4))) < 10


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_splits_are_large_distinct_balanced_and_disjoint(seed):
    train, held_out = generate("train", 1000, seed), generate("held-out", 300, seed)
    for tasks in (train, held_out):
        assert len({task.id for task in tasks}) == len(tasks)
        counts = Counter(task.family for task in tasks)
        assert set(counts) == {family.name for family in FAMILIES}
        assert max(counts.values()) - min(counts.values()) <= 1
    assert not {task.instruction for task in train} & {task.instruction for task in held_out}
    assert {split_of(task.id) for task in train} == {"train"}
    assert {split_of(task.id) for task in held_out} == {"held-out"}


def test_instructions_and_commands_are_short():
    for task in generate("train", 230, seed=5):
        assert len(task.instruction.split()) <= 20
        assert 1 <= len(task.solution) <= 4
        for attempt in task.attempts(Random(0)):
            assert max(len(command) for command in attempt.commands) <= 100


def test_what_must_be_looked_up_is_not_in_the_instruction():
    for task in generate("train", 115, seed=6, families=[family.name for family in FAMILIES if family.needs_look]):
        known = task.instruction.replace("/", " ").replace(".", " ").split()
        last = task.solution[-1].replace("/", " ").replace(".", " ").replace("'", " ").split()
        assert set(last) - set(known) - {"mv", "sed", "-i", "s"}


def test_attempts_come_in_all_kinds_and_shares_are_kept():
    random = Random(0)
    tasks = generate("train", 23, seed=7)
    for task in tasks:
        attempts = task.attempts(random)
        assert Counter(attempt.kind for attempt in attempts).keys() == {"right", "partial", "wrong"}
        assert len({attempt.commands for attempt in attempts}) == len(attempts)
        assert task.solution in [attempt.commands for attempt in attempts if attempt.kind == "right"]
    kinds = Counter(task.attempt(random, right=0.5, partial=0.2).kind for task in tasks for _ in range(100))
    assert abs(kinds["right"] / 2300 - 0.5) < 0.05
    assert abs(kinds["partial"] / 2300 - 0.2) < 0.05


def test_rows_are_read_back_as_the_same_tasks(tmp_path):
    tasks = generate("train", 46, seed=8)
    write_rows(tmp_path / "train.jsonl", tasks)
    read = read_tasks(tmp_path / "train.jsonl")
    assert read == [task.task for task in tasks]
    assert {parse_definition(task.definition).image for task in read} == {"ubuntu:22.04"}
    assert all(task.digest == own.task.digest for task, own in zip(read, tasks, strict=True))


def test_families_can_be_chosen():
    assert {task.family for task in generate("train", 10, 0, families=["set-mode", "copy-tree"])} == {
        "set-mode",
        "copy-tree",
    }


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (("test", 1, 0), {}, "No split 'test'"),
        (("train", 1, 0), {"families": ["set-mood"]}, "No desk family 'set-mood'"),
        (("held-out", 1000, 0), {"families": ["repair-script"]}, "too many"),
    ],
)
def test_what_cannot_be_generated_is_one_clear_line(arguments, options, says):
    with pytest.raises(InputError, match=says):
        generate(*arguments, **options)


def test_description_counts_what_can_be_drawn():
    lines = {line["family"]: line for line in describe()}
    assert len(lines) == len(FAMILIES)
    line = lines["repair-script"]
    drawn = set()
    for split in ("train", "held-out"):
        drawn |= {task.id for task in generate(split, 150, 0, families=["repair-script"])}
    assert line["instances"] == 12 * 16 * 3 >= len(drawn)
    assert line["commands"] == 2
    assert sum(line["needs look"] for line in lines.values()) >= 3
