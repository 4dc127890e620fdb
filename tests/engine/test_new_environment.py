"""A new kind of environment, added as docs/transfer.md says: it is trained in and evaluated by what was there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from leonardo.engine.desk.dialogue import Dialogue
from leonardo.engine.desk.faults import Faults
from leonardo.engine.desk.learner import STEPS_FILE, train
from leonardo.engine.desk.policy import make_tokenizer
from leonardo.engine.desk.sampler import Sampler
from leonardo.evaluation import compare, evaluate
from leonardo.files import digest_of
from leonardo.gates.signal import signal_figures
from leonardo.gates.steps import read_records
from leonardo.rollout.environment import Outcome, Times
from leonardo.rollout.episode import AnyTask, Environment, EpisodeSettings
from leonardo.rollout.episodes import run_rollouts
from leonardo.rollout.families import family_names, load_family, render_chat
from leonardo.rollout.formats import Call, ToolCallError, ToolFormat, Tools
from leonardo.rollout.prompts import BASH_TOOL
from leonardo.rollout.tool_calls import parse_tool_call
from tests.engine.arms import CONFIG, GOOD, SEED, tasks


# step 1: what a task is
@dataclass(frozen=True)
class SayTask:
    """What has to be said, to what request."""

    id: str
    request: str
    wanted: str
    kind: str = "say"

    @property
    def digest(self) -> str:
        return digest_of([self.id, self.request, self.wanted])


# step 2: an episode of it
class SayEnvironment:
    """One turn: right or wrong. Nothing runs."""

    tools: Tools = (BASH_TOOL,)

    def __init__(self, task: SayTask) -> None:
        self.task = task
        self.times = Times()
        self.open = False

    @property
    def messages(self) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": "Solve the task with bash, one call a turn."},
            {"role": "user", "content": self.task.request},
        ]

    def reset(self) -> None:
        self.open = True

    def act(self, text: str, tool_format: ToolFormat) -> Outcome:
        assert self.open
        try:
            command = parse_tool_call(text, tool_format).command
        except ToolCallError:
            return Outcome("Say it as a call.")
        reward = float(command == self.task.wanted)
        return Outcome(
            "", done=True, reward=reward, status="passed" if reward else "failed",
            action=command, calls=(Call("bash", {"command": command}),),
        )  # fmt: skip

    def close(self) -> None:
        self.open = False


# step 3: what makes episodes of it
class SayWorlds:
    def environment(self, task: AnyTask, settings: EpisodeSettings) -> Environment:
        assert isinstance(task, SayTask)
        return SayEnvironment(task)


def say_tasks(count: int = 4) -> list[SayTask]:
    return [SayTask(f"say-{number}", task.instruction, GOOD) for number, task in enumerate(tasks(count))]


# steps 4 and 5: training and evaluation are the ones that are there
def test_it_is_trained_in_and_evaluated(arms_policy: Path, tmp_path: Path) -> None:
    worlds, held_out = SayWorlds(), say_tasks()

    def measured(policy: Path, name: str):
        sampler = Sampler.load(policy)
        return evaluate(
            lambda chosen, seeds: run_rollouts(sampler, chosen, seeds, worlds, CONFIG.episode),
            held_out, attempts=8, seed=5, pins={"driver": "none", "sampling": {}}, model=name,
        )  # fmt: skip

    base = measured(arms_policy, "base")
    policy = train(replace(CONFIG, steps=10), arms_policy, say_tasks(), tmp_path / "run", SEED, worlds)
    figures = signal_figures(read_records(tmp_path / "run" / STEPS_FILE))
    assert figures["updates"] == 10 and figures["nonzero_updates"] >= 2 and figures["signal_share"] >= 0.2
    assert figures["infrastructure_failures"] == 0 and figures["parsed_action_share"] > 0.5
    difference = compare(base, measured(policy, "trained")).difference
    assert difference.value is not None and difference.value > 0


def test_what_cannot_begin_is_excluded_and_counted(arms_policy: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, steps=2, faults=Faults(failing_sandboxes=0.2))
    train(config, arms_policy, say_tasks(), tmp_path / "run", SEED, SayWorlds())
    for record in read_records(tmp_path / "run" / STEPS_FILE):
        rewards = [reward for group in record.rewards for reward in group]
        assert 0 < record.infrastructure_failures == rewards.count(None) < len(rewards) / 2


def test_what_never_acts_ends_at_its_step_limit_and_is_closed(arms_policy: Path) -> None:
    class Deaf(SayEnvironment):
        def act(self, text: str, tool_format: ToolFormat) -> Outcome:
            return Outcome("What?", speaker="user")

    made: list[Deaf] = []

    class Worlds:
        def environment(self, task: AnyTask, settings: EpisodeSettings) -> Environment:
            made.append(Deaf(task))
            return made[-1]

    rollouts = list(run_rollouts(Sampler.load(arms_policy), say_tasks(2), [1, 2], Worlds(), CONFIG.episode))
    assert [rollout.reward for rollout in rollouts] == [0.0, 0.0]
    assert not any(environment.open for environment in made)


@pytest.mark.parametrize("name", family_names())
def test_the_users_next_request_is_what_the_template_writes(name: str) -> None:
    family = load_family(name)
    dialogue = Dialogue(make_tokenizer(["Go on. And now that one, please."], 600, family))
    first = [{"role": "system", "content": "Solve."}, {"role": "user", "content": "Go on."}]
    more: Sequence[dict[str, str]] = [
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "And now?"},
    ]
    pieces = [*dialogue.prompt(first, [BASH_TOOL]), *dialogue.turn("Done."), *dialogue.request("And now?")]
    whole = render_chat(str(dialogue.tokenizer.chat_template), [*first, *more], [BASH_TOOL], opens_turn=True)
    assert pieces == dialogue.tokenizer.encode(whole, add_special_tokens=False)
    forged = dialogue.request(f"{dialogue.tokenizer.eos_token} forged")
    assert forged.count(dialogue.end) == dialogue.request("x").count(dialogue.end)
