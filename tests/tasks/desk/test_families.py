"""Every family in a real sandbox: the initial state fails, what is called right passes, all else fails."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from leonardo.sandbox.backend import SandboxBackend
from leonardo.sandbox.driver import Driver, LayerStack
from leonardo.tasks.definition import parse_definition
from leonardo.tasks.desk import FAMILIES, DeskTask, generate

INSTANCES = {"train": 1, "held-out": 1}


@pytest.fixture(scope="module")
def sandbox(
    driver: Driver, tiny_root_archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SandboxBackend]:
    """A sandbox on the tiny root; ``start`` resets it."""
    base = tmp_path_factory.mktemp("desk") / "base"
    driver.unpack(tiny_root_archive, base)
    backend = driver.backend(LayerStack(base), timeout=20)
    yield backend
    backend.close()
    driver.remove(base)


def reset(sandbox: SandboxBackend, task: DeskTask) -> None:
    """The task's initial state, its set-up run as a build would."""
    sandbox.start()
    sandbox.write_file("/set-up", parse_definition(task.task.definition).post)
    result = sandbox.run_command("/bin/sh -e /set-up && rm /set-up")
    assert result.exit_code == 0, result.stderr


def verify(sandbox: SandboxBackend, task: DeskTask) -> tuple[str, str]:
    """The reward and, for the message of a failing test, what the verifier said."""
    for name, content in task.task.tests.items():
        sandbox.write_file(f"/tests/{name}", content)
    result = sandbox.run_command("bash /tests/test.sh; rm -r /tests")
    return str(sandbox.read_file("/logs/verifier/reward.txt")).strip(), result.stdout + result.stderr


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
def test_right_passes_and_all_else_fails(sandbox: SandboxBackend, family: str) -> None:
    for split, count in INSTANCES.items():
        for task in generate(split, count, seed=11, families=[family]):
            reset(sandbox, task)
            assert verify(sandbox, task)[0] == "0", f"{task.id} passes untouched"
            for attempt in task.attempts(Random(0)):
                reset(sandbox, task)
                outputs = [sandbox.run_command(command) for command in attempt.commands]
                reward, said = verify(sandbox, task)
                assert reward == ("1" if attempt.kind == "right" else "0"), (task.id, attempt, outputs, said)


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
def test_the_reference_script_passes(sandbox: SandboxBackend, family: str) -> None:
    (task,) = generate("held-out", 1, seed=12, families=[family])
    reset(sandbox, task)
    assert task.task.reference_solution
    sandbox.write_file("/solve.sh", task.task.reference_solution)
    sandbox.run_command("bash /solve.sh")
    reward, said = verify(sandbox, task)
    assert reward == "1", said


@pytest.mark.parametrize("family", [family.name for family in FAMILIES if family.needs_look])
def test_looking_shows_what_the_next_command_uses(sandbox: SandboxBackend, family: str) -> None:
    (task,) = generate("train", 1, seed=13, families=[family])
    reset(sandbox, task)
    look, act = task.solution
    seen = sandbox.run_command(look).stdout
    unknown = {word for word in words(act) if word not in words(task.instruction) and word in words(seen)}
    assert unknown, (task.instruction, seen, act)


def words(text: str) -> set[str]:
    return set("".join(letter if letter.isalnum() or letter in "+-%" else " " for letter in text).split())


@pytest.mark.parametrize(
    ("family", "trick"),
    [
        ("copy-tree", "ln -s {0} {1}"),
        ("link-file", "touch {1}"),
        ("pack-folder", "touch {0}"),
        ("start-service", "echo 1 > {1}"),
        ("count-lines", "echo 5 > {1}; echo x > {0}"),
    ],
)
def test_tricks_do_not_pass(sandbox: SandboxBackend, family: str, trick: str) -> None:
    (task,) = generate("train", 1, seed=14, families=[family])
    paths = [word.strip(".,") for word in task.instruction.split() if word.startswith("/data")]
    reset(sandbox, task)
    sandbox.run_command(trick.format(*paths))
    assert verify(sandbox, task)[0] == "0"


def test_printing_the_answer_repairs_no_script(sandbox: SandboxBackend) -> None:
    (task,) = generate("train", 1, seed=15, families=["repair-script"])
    path = task.solution[0].removeprefix("cat ")
    reset(sandbox, task)
    sandbox.run_command(" && ".join(task.solution))
    answer = sandbox.run_command(f"bash {path}").stdout.strip()
    sandbox.run_command(f"echo 'echo {answer}' > {path}")
    assert sandbox.run_command(f"bash {path}").stdout.strip() == answer
    assert verify(sandbox, task)[0] == "0"
