"""The desk's function-calling rows: right and mistaken calls are told apart, and nothing held out is trained on."""

from collections import Counter
from random import Random

import pytest

from leonardo.engine.desk.dialogue import Dialogue
from leonardo.engine.desk.function_demonstrations import function_demonstrations
from leonardo.engine.desk.policy import make_tokenizer
from leonardo.errors import InputError
from leonardo.functions.checkers import Checkers
from leonardo.functions.desk import CATEGORIES, REFUSAL, generate, split_of
from leonardo.functions.environment import FunctionWorlds, as_json
from leonardo.functions.tasks import leaks
from leonardo.rollout.episode import EpisodeSettings
from leonardo.rollout.families import family_names, load_family


def test_right_calls_pass_and_mistaken_ones_do_not(checkers: Checkers) -> None:
    for row in generate("train", 80, seed=1):
        for calls, passes in ((row.right, True), (row.wrong, False)):
            verdict = checkers.ask("check", row=row.task.row, calls=as_json(list(calls)))
            assert verdict["valid"] is passes, (row.task.id, calls, verdict)


def test_rows_are_dealt_out_evenly_and_a_smaller_count_is_a_prefix() -> None:
    rows = generate("train", 80, seed=1)
    assert Counter(row.task.kind for row in rows) == dict.fromkeys(CATEGORIES, 20)
    assert [row.task.id for row in generate("train", 30, seed=1)] == [row.task.id for row in rows[:30]]
    assert [row.task.id for row in generate("train", 30, seed=2)] != [row.task.id for row in rows[:30]]


def test_the_splits_share_no_request() -> None:
    train, held_out = (generate(split, 300, seed=1) for split in ("train", "held-out"))
    assert {split_of(row.task.id) for row in train} == {"train"}
    asked = [{row.task.messages[-1]["content"] + str(row.task.tools) for row in part} for part in (train, held_out)]
    assert not asked[0] & asked[1]
    assert leaks([row.task for row in train], [row.task for row in held_out])  # functions are shared, on purpose


def test_an_unknown_category_is_named() -> None:
    with pytest.raises(InputError, match="no desk function category nested"):
        generate("train", 1, seed=1, categories=["nested"])


@pytest.mark.parametrize("name", family_names())
def test_every_family_says_the_demonstrations_and_the_mask_holds_the_turn_alone(name: str, checkers: Checkers) -> None:
    family = load_family(name)
    rows = generate("train", 40, seed=1)
    demonstrations = function_demonstrations(rows, family.tool_format, right=1.0, seed=0)
    dialogue = Dialogue(make_tokenizer([entry.text for entry in demonstrations], 1000, family))
    for row, entry in zip(rows, demonstrations, strict=True):
        tokens, response = entry.tokens(dialogue)
        said = dialogue.text([token for token, chosen in zip(tokens, response, strict=True) if chosen])
        assert said == entry.turns[0][0]
        environment = FunctionWorlds(checkers).environment(row.task, EpisodeSettings())
        assert environment.act(said, family.tool_format).reward == 1.0
        shown = dialogue.tokenizer.decode(tokens)
        assert all(tool["function"]["name"] in shown for tool in row.task.tools)


def test_shares_of_right_demonstrations() -> None:
    rows = generate("train", 400, seed=1)
    family = load_family("qwen3.5")
    made = function_demonstrations(rows, family.tool_format, right=0.4, seed=0)
    assert 0.33 < sum(entry.right for entry in made) / len(made) < 0.47
    assert made == function_demonstrations(rows, family.tool_format, right=0.4, seed=0)
    refusals = {entry.right for entry in made if entry.turns[0][0] == REFUSAL}
    assert refusals == {True}
    assert rows[0].attempt(Random(0), right=0.0) == (rows[0].wrong, False)
