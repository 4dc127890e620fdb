import pytest
from pydantic import ValidationError

from leonardo.gates.criteria import Criterion, apply


@pytest.mark.parametrize(
    ("bound", "value", "ok"),
    [
        ({"least": 2}, 2, True),
        ({"least": 2}, 1.99, False),
        ({"most": 0.1}, 0.1, True),
        ({"most": 0.1}, 0.2, False),
        ({"least": 0, "most": 1}, 2, False),
        ({"equals": True}, True, True),
        ({"equals": True}, False, False),
        ({"equals": True}, 1, False),
        ({"equals": 0}, 0, True),
        ({"equals": 0}, False, False),
        ({"least": 0}, None, False),
        ({"most": 1}, True, False),
        ({"most": 1}, float("nan"), False),
    ],
)
def test_bounds(bound, value, ok):
    (finding,) = apply([Criterion(figure="x", reason="why", **bound)], {"x": value})
    assert finding.ok is ok


def test_a_figure_that_was_not_measured_meets_nothing_and_says_so():
    (finding,) = apply([Criterion(figure="weights_agree", equals=True, reason="the engine must follow")], {})
    assert not finding.ok
    assert finding.sentence == "weights_agree was not measured (asked: is true): the engine must follow"


@pytest.mark.parametrize("bounds", [{}, {"equals": 1, "least": 0}])
def test_a_criterion_has_one_kind_of_bound(bounds):
    with pytest.raises(ValidationError, match="x"):
        Criterion(figure="x", reason="why", **bounds)
