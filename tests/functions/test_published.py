"""The package's own rows as a corpus: answered, short enough, split, and dealt out."""

from collections import Counter

import pytest

from leonardo.engine.desk.function_demonstrations import function_demonstrations
from leonardo.errors import InputError
from leonardo.functions.checkers import Checkers
from leonardo.functions.desk import REFUSAL
from leonardo.functions.environment import FunctionWorlds
from leonardo.functions.published import PublishedRows, published_rows
from leonardo.functions.tasks import leaks
from leonardo.rollout.episode import EpisodeSettings
from leonardo.rollout.formats import QWEN3_XML

CATEGORIES = ("simple_python", "multiple", "irrelevance")


@pytest.fixture(scope="module")
def published(checkers: Checkers) -> PublishedRows:
    """Rows whose first function has at most two parameters."""
    return published_rows(
        checkers,
        CATEGORIES,
        [QWEN3_XML],
        lambda task, calls: len(task.tools[0]["function"]["parameters"]["properties"]) <= 2,
        seed=1,
    )


def test_demonstrations_are_judged_as_they_are_said_to_be(published: PublishedRows, checkers: Checkers) -> None:
    rows = published.train[:30]
    environment = FunctionWorlds(checkers).environment
    for right in (1.0, 0.0):
        shown = function_demonstrations(rows, QWEN3_XML, right=right, seed=0)
        for row, entry in zip(rows, shown, strict=True):
            said = entry.turns[0][0]
            assert (said == REFUSAL) == (row.task.kind == "irrelevance" and right == 1.0)
            assert environment(row.task, EpisodeSettings()).act(said, QWEN3_XML).reward == right, (row.task.id, said)


def test_rows_come_again_where_more_demonstrations_are_asked_for(published: PublishedRows) -> None:
    rows = published.train[:5]
    shown = function_demonstrations(rows, QWEN3_XML, right=0.5, seed=0, count=40)
    assert Counter(entry.messages[-1]["content"] for entry in shown) == Counter(
        row.task.messages[-1]["content"] for row in rows * 8
    )
    assert 5 < sum(entry.right for entry in shown) < 35
    assert shown[:5] == function_demonstrations(rows, QWEN3_XML, right=0.5, seed=0)


def test_what_is_left_is_counted_and_dealt_out_evenly(published: PublishedRows) -> None:
    for split, rows in (("train", published.train), ("held-out", published.held_out)):
        left = published.left[split]
        assert Counter(row.task.kind for row in rows) == {name: count.fitting for name, count in left.items()}
        assert all(0 < count.fitting < count.answered <= count.split for count in left.values())
        least = min(count.fitting for count in left.values())
        assert Counter(row.task.kind for row in rows[: 3 * least]) == dict.fromkeys(CATEGORIES, least)
    assert not leaks([row.task for row in published.train], [row.task for row in published.held_out])


def test_a_category_of_several_turns_is_refused(checkers: Checkers) -> None:
    with pytest.raises(InputError, match="no single-turn category multi_turn_base"):
        published_rows(checkers, ["multi_turn_base"], [QWEN3_XML], lambda task, calls: True, seed=1)
