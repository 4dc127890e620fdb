"""Where environments are placed: as upstream does it, or on nodes for sandboxes alone."""

from typing import Any

import pytest

from leonardo.hooks.placement import PLACEMENT_VARIABLE, on_sandbox_nodes


class ActorClass:
    """What Ray makes of a class, as far as it is used."""

    def options(self, **options: Any) -> dict[str, Any]:
        return options


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nothing_changes_where_there_are_no_such_nodes(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLACEMENT_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(PLACEMENT_VARIABLE, value)
    known = ActorClass()
    assert on_sandbox_nodes(known) is known


def test_the_nodes_resource_is_asked_for_and_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes for sandboxes have no CPUs to give, and take all of them if Ray is not told to spread."""
    monkeypatch.setenv(PLACEMENT_VARIABLE, "1")
    assert on_sandbox_nodes(ActorClass()) == {
        "num_cpus": 0,
        "resources": {"sandbox": 1},
        "scheduling_strategy": "SPREAD",
    }
