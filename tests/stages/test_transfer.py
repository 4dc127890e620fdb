"""The transfer study: what its file says, what its matrix counts, and that finished cells are not run again."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from leonardo import evidence
from leonardo.engine.desk.config import LearnerConfig
from leonardo.engine.desk.learner import POLICY_FOLDER, STEPS_FILE
from leonardo.errors import InputError
from leonardo.evaluation import EvaluationRecord, TaskResult, compare
from leonardo.functions.checkers import package_folder
from leonardo.gates.criteria import Finding, apply
from leonardo.report.transfer import render_seeds, render_transfer
from leonardo.settings import LAUNCH
from leonardo.stages.transfer import ROWS_FILE, TransferOutcome, _is_trained, run_transfer
from leonardo.stages.transferfile import JUDGED, KINDS, Transfer, limits_of, load_transfer
from leonardo.stages.transfermatrix import BASE, Effect, Matrix
from leonardo.stages.transferseeds import figures_of, put_together, run_seeds

STAGE = LAUNCH / "studies/transfer.yaml"


def evaluation(name: str, passing: int, tasks: int = 60) -> EvaluationRecord:
    return EvaluationRecord(
        model=name,
        pins={"driver": "d"},
        tasks=[
            TaskResult(task_id=f"t{number}", family="f", attempts=[int(number < passing)], seeds=[1])
            for number in range(tasks)
        ],
        pass_rate=passing / tasks,
        pass_rate_ci=None,
        infrastructure_failures=0,
        seconds=1.0,
    )


def matrix_of(
    stage: Transfer, *, gain: int, control_gain: int, without_signal: str = "", spread: Sequence[int] = ()
) -> Matrix:
    """A whole matrix: training gains on its own kind, each of the control on the stage's, by its ``spread`` more."""
    matrix = Matrix()
    controls = dict(zip(stage.control.starts, spread or [0] * stage.control.trainings, strict=True))
    for number, model in enumerate(stage.models):
        starts = [BASE, *KINDS, *(stage.control.starts if number == 0 else [])]
        for start in starts:
            for kind in KINDS:
                control = start in controls and kind == "functions"
                own = gain if start == kind else control_gain + controls[start] if control else 0
                matrix.records[model, start, kind] = evaluation(f"{model}-{start}", 20 + own)
        for start in starts[1:]:
            ok = f"{model} {start}" != without_signal
            matrix.signals[model, start] = [Finding(criterion, 1, ok) for criterion in stage.gate]
            for kind in KINDS:
                comparison = compare(matrix.records[model, BASE, kind], matrix.records[model, start, kind])
                found = stage.rule.judge(comparison.difference.interval, comparison.difference.pairs)
                matrix.effects.append(Effect(model, start, kind, comparison, found))
    return matrix


def test_question_and_rule_stand_in_the_file() -> None:
    stage = load_transfer(STAGE)
    assert "?" in stage.question and stage.rule.pairs == 40
    assert len(stage.models) == 2 and stage.control.kind == "functions"
    assert {criterion.figure for criterion in stage.criteria} <= set(
        matrix_of(stage, gain=20, control_gain=0).figures(stage)
    )


def test_every_figure_that_criteria_may_be_about_is_counted() -> None:
    stage = load_transfer(STAGE)
    counted = set(matrix_of(stage, gain=20, control_gain=0).figures(stage)) | {"seconds", "cells_run"}
    assert set(JUDGED) == counted - {"effects"}


def test_a_matrix_is_counted() -> None:
    stage = load_transfer(STAGE)
    figures = matrix_of(stage, gain=20, control_gain=0).figures(stage)
    assert (figures["cells"], figures["cells_missing"]) == (24, 0)
    assert (figures["terminal_signal"], figures["functions_signal"]) == (2, 2)
    assert (figures["trained_learns"], figures["control_learns"]) == (4, False)
    assert figures["effects"]["desk: terminal on functions"]["direction"] == "none shown"


def test_a_control_that_drifts_is_judged_by_the_mean_of_its_trainings() -> None:
    """Single trainings gain, far outside their intervals over tasks."""
    stage = load_transfer(STAGE)
    matrix = matrix_of(stage, gain=20, control_gain=0, spread=[12, 14, -10, -3, 20, -12])
    assert matrix.effect("desk", "control-2", "functions").direction == "credible positive direction"
    found = matrix.control(stage)
    assert (found.trainings, found.direction) == (6, "none shown") and not matrix.figures(stage)["control_learns"]
    assert found.interval is not None and found.mean == pytest.approx(sum(found.interval) / 2)
    always = matrix_of(stage, gain=20, control_gain=12, spread=[2, -2, 3, -3, 1, 0])
    assert always.control(stage).direction == "credible positive direction" and always.figures(stage)["control_learns"]
    once = stage.model_copy(update={"control": stage.control.model_copy(update={"trainings": 1})})
    assert matrix_of(once, gain=20, control_gain=12).figures(once)["control_learns"]


def test_a_control_that_gains_and_a_training_without_signal_show() -> None:
    stage = load_transfer(STAGE)
    figures = matrix_of(stage, gain=0, control_gain=20, without_signal="desk terminal").figures(stage)
    assert (figures["trained_learns"], figures["control_learns"], figures["terminal_signal"]) == (0, True, 1)
    matrix = matrix_of(stage, gain=20, control_gain=0)
    lost = matrix.records["desk", BASE, "terminal"]
    matrix.records["desk", BASE, "terminal"] = lost.model_copy(update={"pass_rate": None})
    assert matrix.figures(stage)["cells_missing"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": ["nobody"]}, "No model nobody"),
        ({"control": {"kind": "functions", "desk": {"faults": {"luck": True}}}}, "faults.luck: unknown setting"),
        ({"functions": {"held_out": 0}}, "functions.held_out"),
        ({"functions": {"source": "bfcl"}}, "names none of the package's"),
        ({"rule": {"pairs": 40}}, "rule.reason"),
        ({"attempts": 0}, "attempts: .*greater than or equal to 1"),
        ({"models": ["desk", "desk"]}, "models: .*named twice"),
        ({"seeds": [1, 2, 1]}, "seeds: one is named twice. Examples are in launch/studies"),
        ({"seeds": [-1]}, "seeds"),
        ({"seeds": [2**32]}, "seeds.0: .*less than 4294967296"),
        ({"seeds": [True]}, "seeds.0: .*valid integer"),
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"name": "a\nb"}, "name is 'a.+nb'"),
        ({"functions": {"source": "bfcl", "categories": ["simple"]}}, "no category simple"),
        ({"seeds": 3}, "seeds: a list is wanted"),
        ({"seeds": []}, "seeds: it is empty"),
        ({"gate": [{"figure": "luck", "least": 1, "reason": "x"}]}, "gate: .*no figure luck"),
        ({"criteria": [{"figure": "updates", "least": 1, "reason": "x"}]}, "criteria: .*no figure updates"),
        ({"desk": {"learning_rate": float("inf")}}, r"\.inf is no finite number"),
        ({"desk": {"groups": 2, "rounds": 1, "wanted_groups": 3}, "trainings": {}}, "wants 3 groups of 2 in 1 rounds"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "transfer.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(STAGE.read_text()) | change))
    with pytest.raises(InputError, match=message):
        load_transfer(path)


def test_a_study_of_one_pretrained_model_and_the_packages_own_rows() -> None:
    stage = load_transfer("transfer-smollm2")
    assert stage.models == ("smollm2",) and (stage.functions.source, stage.listing) == ("bfcl", "json")
    figures = matrix_of(stage, gain=20, control_gain=0).figures(stage)
    assert (figures["cells"], figures["cells_missing"]) == (8, 0)
    assert all(finding.ok for finding in apply(stage.criteria, figures))
    assert "live_simple" in limits_of(stage)[0] and "generated" in limits_of(load_transfer(STAGE))[0]


def outcome_of(stage: Transfer, tmp_path: Path, *, gain: int, control_gain: int, ok: bool) -> TransferOutcome:
    matrix = matrix_of(stage, gain=gain, control_gain=control_gain)
    return TransferOutcome(ok, f"it {'passes' if ok else 'fails'}.", stage, matrix, [], tmp_path, {"seed": 1}, "desk")


def test_over_seeds_a_direction_is_what_every_seed_says(tmp_path: Path) -> None:
    stage = load_transfer(STAGE).model_copy(update={"seeds": (1, 2)})
    outcomes = [outcome_of(stage, tmp_path, gain=12, control_gain=0, ok=True)]
    outcomes.append(outcome_of(stage, tmp_path, gain=24, control_gain=20, ok=False))
    found = put_together(stage, outcomes)
    assert (found.ok, found.sentence) == (False, "transfer fails with the seeds 2 of 2.")
    effects = figures_of(found.cells)
    own = effects["desk: terminal on terminal"]
    assert own["differences"] == pytest.approx([0.2, 0.4]) and own["mean"] == pytest.approx(0.3)
    assert own["spread"] == pytest.approx(0.1 * 2**0.5) and own["direction"] == "credible positive direction"
    control = effects["desk: control on functions"]
    assert control["directions"] == ["none shown", "credible positive direction"]
    assert control["direction"] == "none shown"
    page = render_seeds(found, tmp_path / "transfer.html").read_text()
    assert "<td>+30.0</td><td>14.1</td><td>credible positive direction</td>" in page and "seed 2: it fails." in page
    assert put_together(stage, outcomes[:1] * 2).ok


SMALL = {
    "models": ["desk"],
    "corpus": {"train": 4, "held_out": 2, "unprepared": 40},
    "attempts": 1,
    "warm_start": {"steps": 3, "batch": 4},
    "trainings": {},
    "desk": {"steps": 1, "groups": 1, "group_size": 2, "wanted_groups": 1, "rounds": 1},
    "control": {"kind": "functions", "desk": {"faults": {"shuffled_rewards": True}}},
}


@pytest.fixture
def site(tmp_path: Path, tiny_root_archive: Path) -> Path:
    try:
        package_folder()
    except InputError as error:
        pytest.skip(str(error))
    path = tmp_path / "site.yaml"
    path.write_text(
        f"name: test\ncache: {tmp_path / 'cache'}\nbases:\n  ubuntu:22.04:\n    registry: false\n    substitute:\n"
        f"      {{kind: archive, path: {tiny_root_archive}, environment: {{}}, reason: a test}}\n"
    )
    return path


@pytest.mark.slow
def test_the_packages_own_rows_go_through(tmp_path: Path, site: Path) -> None:
    """A desk policy, with the tools as JSON; it has no tokenizer of its own, so that no row is too long for it."""
    rows = {"source": "bfcl", "categories": ["simple_python", "irrelevance"]}
    small = SMALL | {"functions": {**rows, "train": 6, "held_out": 4, "demonstrations": 40}, "episode": {}}
    stage = tmp_path / "transfer.yaml"
    stage.write_text(yaml.safe_dump(yaml.safe_load((LAUNCH / "studies/transfer-smollm2.yaml").read_text()) | small))
    outcome = run_transfer(
        stage, seed=1, site=site, driver_name="auto", runs=tmp_path / "runs",
        out=tmp_path / "out", console=Console(quiet=True),
    )  # fmt: skip
    assert outcome.matrix.figures(outcome.stage)["cells_missing"] == 0
    found = json.loads((outcome.run_folder / ROWS_FILE).read_text())
    assert found["left"]["train"]["simple_python"]["fitting"] > 200
    assert [len(found[split]) for split in ("train", "held_out")] == [6, 4]
    assert not set(found["train"]) & set(found["held_out"])
    trajectories = (outcome.run_folder / "evaluation-desk-base-functions-trajectories.jsonl").read_text()
    assert "irrelevance_" in trajectories and "simple_python_" in trajectories
    assert "a score on BFCL" in render_transfer(outcome).read_text()


@pytest.mark.slow
def test_finished_cells_are_not_run_again(tmp_path: Path, site: Path) -> None:
    small = SMALL | {"functions": {"train": 8, "held_out": 4, "demonstrations": 40}}
    stage = tmp_path / "transfer.yaml"
    stage.write_text(yaml.safe_dump(yaml.safe_load(STAGE.read_text()) | small))

    def run():
        return run_transfer(
            stage, seed=1, site=site, driver_name="auto", runs=tmp_path / "runs",
            out=tmp_path / "out", console=Console(quiet=True),
        )  # fmt: skip

    first = run()
    verdict = yaml.safe_load((tmp_path / "out/transfer.json").read_text())
    assert verdict["figures"]["cells_run"] == 8 and verdict["figures"]["cells_missing"] == 0
    assert not first.ok, "three steps of warm start pass nothing"
    page = render_transfer(first).read_text()
    assert (
        first.stage.question.strip().split()[0] in page and "irrelevance" in page and "signal_share, at least" in page
    )
    for changed, ran in (("", 0), ("evaluation-desk-terminal-functions.json", 1)):
        if changed:
            (first.run_folder / changed).unlink()
        again = run()
        verdict = yaml.safe_load((tmp_path / "out/transfer.json").read_text())
        assert again.run_folder == first.run_folder and verdict["figures"]["cells_run"] == ran
        assert again.matrix.figures(again.stage)["effects"] == first.matrix.figures(first.stage)["effects"]
        found = evidence.check(tmp_path / "runs" / evidence.LEDGER)
        assert bool(found.faults) == bool(changed), "a cell that was made again is not the one that was entered"


@pytest.mark.slow
def test_several_seeds_are_runs_of_their_own_and_go_on_cell_by_cell(tmp_path: Path, site: Path) -> None:
    small = SMALL | {"functions": {"train": 8, "held_out": 4, "demonstrations": 40}, "seeds": [1, 2]}
    stage = tmp_path / "transfer.yaml"
    stage.write_text(yaml.safe_dump(yaml.safe_load(STAGE.read_text()) | small))

    def run(*ran: int):
        found = run_seeds(
            stage, site=site, driver_name="auto", runs=tmp_path / "runs", out=tmp_path / "out",
            console=Console(quiet=True),
        )  # fmt: skip
        verdicts = [json.loads((tmp_path / f"out/transfer-seed{seed}.json").read_text()) for seed in (1, 2)]
        assert tuple(verdict["figures"]["cells_run"] for verdict in verdicts) == ran
        return found

    first = run(8, 8)
    over_seeds = (tmp_path / "out/transfer.json").read_text()
    run_transfer(
        stage, seed=2, site=site, driver_name="auto", runs=tmp_path / "runs", out=tmp_path / "out",
        console=Console(quiet=True),
    )  # fmt: skip
    assert (tmp_path / "out/transfer.json").read_text() == over_seeds
    assert len({outcome.run_folder for outcome in first.outcomes}) == 2
    (first.outcomes[1].run_folder / "evaluation-desk-terminal-functions.json").unlink()
    again = run(0, 1)
    assert figures_of(again.cells) == figures_of(first.cells)
    assert json.loads((tmp_path / "out/transfer.json").read_text())["pins"]["seed"] == [1, 2]
    names = [entry.name for entry in evidence.read(tmp_path / "runs" / evidence.LEDGER)]
    assert names == ["transfer", "transfer", "transfer-seeds", "transfer", "transfer", "transfer", "transfer-seeds"]
    assert len(evidence.read(tmp_path / "runs" / evidence.LEDGER)[-1].records) == 12


def test_a_training_counts_with_all_of_its_steps(tmp_path: Path) -> None:
    """A policy that lies there is the training's only with a record of every step."""
    config, steps = LearnerConfig(steps=2), tmp_path / STEPS_FILE
    assert not _is_trained(tmp_path, config)
    (tmp_path / POLICY_FOLDER).mkdir()
    (tmp_path / POLICY_FOLDER / "config.json").write_text("{}")
    assert not _is_trained(tmp_path, config), "no step is recorded"
    evidence_of = next((LAUNCH.parent / "docs/evidence").glob("one-gpu-transfer-smollm2/seed1/smollm2/control/*.jsonl"))
    lines = evidence_of.read_text().splitlines(keepends=True)
    for count, trained in ((1, False), (2, True), (3, False)):
        steps.write_text("".join(lines[:count]))
        assert _is_trained(tmp_path, config) == trained
