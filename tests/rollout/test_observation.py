import pytest

from leonardo.rollout.observation import ObservationRules
from leonardo.sandbox.backend import ExecutionResult


def test_streams_are_joined_and_the_exit_code_is_a_line():
    shown = ObservationRules().render(ExecutionResult("out\n", "err\n", 3))
    assert shown == "out\n\nerr\n\n\n(exit_code=3)"


def test_no_output_is_said():
    assert ObservationRules().render(ExecutionResult("", "", 0)) == "(no output)\n\n(exit_code=0)"


def test_output_at_the_limit_is_whole():
    assert ObservationRules(10, 5, 5).truncate("0123456789") == "0123456789"


@pytest.mark.parametrize(("head", "tail"), [(3, 2), (3, 0), (0, 2)])
def test_long_output_keeps_head_and_tail(head, tail):
    text = "abcdefghijklmnop"
    shown = ObservationRules(10, head, tail).truncate(text)
    assert shown.startswith(text[:head] + "\n[")
    assert shown.endswith("]\n" + text[len(text) - tail :])
    assert f"{len(text) - head - tail} characters left out" in shown


def test_rules_that_cannot_be_kept_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        ObservationRules(10, 8, 8)
