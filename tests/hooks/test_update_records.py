"""What a rank sees of a step: ratios, differences, norms and what is not finite, held to figures computed by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra desk is not installed")

from leonardo.hooks import fingerprints, update_records  # noqa: E402


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("LEONARDO_RUN", str(tmp_path))
    fingerprints.transfers.cache_clear()


class Engine:
    """DeepSpeed's engine as far as it is used, around plain SGD."""

    def __init__(self, masters: bool = False) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.Linear(4, 2, bias=False).bfloat16()
        self.copies = [self.module.weight.detach().float().clone()] if masters else []
        self.optimizer = SimpleNamespace(param_groups=[{"lr": 0.25}], fp32_partitioned_groups_flat=self.copies)
        self.change, self.norm = 0.0, 3.0
        self.optimizer.grad_partitions_flat_buffer = torch.zeros(8)

    def step(self) -> None:
        for copy in self.copies:
            copy += self.change
        self.module.weight.data += self.change
        self.optimizer.param_groups[0]["lr"] = 0.125  # the schedule goes on

    def get_global_grad_norm(self) -> float:
        return self.norm


def trainer(engine: Engine, rank: int = 0) -> Any:
    return SimpleNamespace(model=engine, rank=rank, dp_world_size=2)


def group(*weights: int | None, kept: bool = True) -> dict[str, Any]:
    return {"kept": kept, "weights": list(weights)}


def batch(*groups: dict[str, Any]) -> dict[str, Any]:
    return {"metrics": {"time/trainer_idle_waiting_for_inference": 1.5, "leonardo/groups": list(groups)}}


def tensors(*, samples: list[int], mask: list[int]) -> Any:
    """A pack of one row; its first token is a prompt's."""
    return SimpleNamespace(
        response_masks=[torch.tensor([[0, *mask]]).bool()], rollout_sample_ids=[torch.tensor([[-1, *samples]])]
    )


ROLLOUT = torch.tensor([[-1.0, -2.0, -1.0, 1.0]])
POLICY = torch.tensor([[-1.1, -1.5, -9.0, -3.0]], requires_grad=True)
MASK = torch.tensor([[True, True, False, True]])
"""The third token is an observation's; the fourth has no log-probability by the rollout engine (upstream writes 1)."""


def test_figures_of_a_step() -> None:
    engine = Engine()
    given = batch(group(0, None), group(5, kept=False), group(0, 0))
    watch = update_records.watch_step(trainer(engine), given, tensors(samples=[0, 1, 1, 2], mask=[1, 1, 0, 1]))
    assert "leonardo/groups" not in given["metrics"]  # upstream's metrics stay as they are
    entropy = torch.full((1, 4), 0.5)
    watch.saw(0, POLICY, ROLLOUT, torch.ones(1, 4), MASK, torch.tensor(0.7), entropy)
    engine.change = 0.5
    engine.step()
    figures = watch.figures(torch.tensor(2.0), torch.tensor(3.0))["leonardo"]
    sums, highest = figures["update"]["sums"], figures["update"]["highest"]
    ratios = [math.exp(-0.1), math.exp(0.5)]
    assert sums["tokens"] == 2 and sums["ratio"] == pytest.approx(sum(ratios))
    assert highest["ratio"] == pytest.approx(ratios[1])
    assert highest["divergence"] == pytest.approx(abs(math.exp(-1.5) - math.exp(-2)))
    # rollout 0 was sampled with these weights from first to last token, rollout 1 was not
    assert sums["own_tokens"] == 1 and sums["difference"] == pytest.approx(0.1)
    assert highest["own_deviation"] == pytest.approx(1 - ratios[0])
    assert (sums["loss"], sums["entropy"], sums["entropy_tokens"]) == (pytest.approx(0.7), 1.5, 3)
    update = figures["update"]
    assert update["squared"] == pytest.approx(8 * 0.25, rel=0.02)  # bfloat16
    assert (update["moved"], update["scalars"], update["norms"], update["rates"]) == (8, 8, [3.0], [0.25])
    assert (update["kept"], update["asked"], update["steps"]) == (2, 3, 1)
    assert update["non_finite"] == ["rollout log-probabilities"]
    assert (figures["waited"], figures["shards"], len(figures["groups"])) == (1.5, 2, 3)


def test_only_the_first_rank_gives_the_groups() -> None:
    figures = update_records.empty_step(trainer(Engine(), rank=1), batch(group(0)))["leonardo"]
    assert "groups" not in figures and figures["waited"] == 1.5


def test_own_weights_are_those_before_the_first_update() -> None:
    engine, data = Engine(), tensors(samples=[0, 0, 0, 0], mask=[1, 1, 1, 1])
    fingerprints.transfers().count = 3
    watch = update_records.watch_step(trainer(engine), batch(group(3)), data)
    for _ in range(2):  # two mini-batches: the second sees other weights
        watch.saw(0, POLICY, POLICY.detach(), torch.ones(1, 4), torch.ones(1, 4).bool(), torch.tensor(0.0))
        engine.step()
    assert watch.figures(0, 0)["leonardo"]["update"]["sums"]["own_tokens"] == 4
    # and those that were not yet synchronised are nobody's but the learner's
    watch = update_records.watch_step(trainer(engine), batch(group(3)), data)
    watch.saw(0, POLICY, POLICY.detach(), torch.ones(1, 4), torch.ones(1, 4).bool(), torch.tensor(0.0))
    assert watch.figures(0, 0)["leonardo"]["update"]["sums"]["own_tokens"] == 0


def test_update_is_that_of_the_float32_weights() -> None:
    engine = Engine(masters=True)
    watch = update_records.watch_step(trainer(engine), batch(), tensors(samples=[0], mask=[1]))
    engine.change = 1e-6  # too little to move a bfloat16
    engine.step()
    update = watch.figures(0, 0)["leonardo"]["update"]
    assert update["squared"] == pytest.approx(8 * 1e-12, rel=0.1)
    assert update["moved"] == 0 and update["scalars"] == 8


def test_sampled_update_is_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEONARDO_UPDATE_SAMPLE", "3")
    engine = Engine(masters=True)
    watch = update_records.watch_step(trainer(engine), batch(), tensors(samples=[0], mask=[1]))
    engine.change = 0.5
    engine.step()
    update = watch.figures(0, 0)["leonardo"]["update"]
    assert update["moved"] == update["scalars"] == 9  # 3 of 8, each standing for 3
    assert update["squared"] == pytest.approx(9 * 0.25)


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("policy", "log-probabilities"),
        ("advantages", "advantages"),
        ("loss", "loss"),
        ("norm", "gradient"),
        ("gradient", "gradient"),
        ("weight", "weight (weight)"),
    ],
)
def test_what_is_not_finite_is_named(what: str, named: str) -> None:
    engine = Engine()
    watch = update_records.watch_step(trainer(engine), batch(), tensors(samples=[0, 0], mask=[1, 1]))
    given = {
        "policy": torch.tensor([[-1.0, -2.0]]), "advantages": torch.ones(1, 2), "loss": torch.tensor(0.1),
    }  # fmt: skip
    if what in given:
        given[what].view(-1)[-1] = float("nan")
    watch.saw(
        0, given["policy"], torch.tensor([[-1.0, -2.0]]), given["advantages"], torch.ones(1, 2).bool(), given["loss"]
    )
    engine.norm = math.nan if what == "norm" else 1.0
    engine.optimizer.grad_partitions_flat_buffer[3] = math.inf if what == "gradient" else 0.0
    engine.change = math.inf if what == "weight" else 0.0
    engine.step()
    assert watch.figures(0, 0)["leonardo"]["update"]["non_finite"] == [named]


def test_steps_that_nobody_watches_are_the_engines_own() -> None:
    engine = Engine()
    watch = update_records.watch_step(trainer(engine), batch(), tensors(samples=[0], mask=[1]))
    watch.figures(0, 0)
    engine.step()
    assert watch.steps == 0 and fingerprints.transfers().changed


def test_nothing_happens_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEONARDO_RUN")
    engine, given = Engine(), {"metrics": {"time": 1.0}}
    inner = engine.step
    watch = update_records.watch_step(trainer(engine), given, None)
    watch.saw(0, None, None, None, None, None)
    assert watch.figures(None, None) == {} == update_records.empty_step(trainer(engine), given)
    assert engine.step == inner and given == {"metrics": {"time": 1.0}}
