"""The published table, and that nothing is compared with it silently."""

import pytest

from leonardo.errors import InputError
from leonardo.evaluation.comparability import reasons
from leonardo.evaluation.published import load_published
from leonardo.evaluation.records import EvaluationRecord


def record(**changes):
    fields = {"model": "m", "pins": {"driver": "d"}, "tasks": [], "pass_rate": 0.5, "pass_rate_ci": None}
    return EvaluationRecord(**fields | {"infrastructure_failures": 0, "seconds": 1} | changes)


def test_the_table_has_base_and_trained_of_every_size_on_every_benchmark():
    table = load_published()
    found = {(result.size, result.trained, result.benchmark) for result in table.results}
    assert len(found) == len(table.results) == 4 * 2 * 3
    assert all(source.startswith("https://") for source in table.sources)


def test_a_desk_record_may_not_be_compared_and_every_reason_is_said():
    pins = {"driver": "namespaces", "attempts": 4, "harness": "a" * 64, "sampling": {"temperature": 1.0}}
    found = reasons(record(pins=pins), load_published().benchmark("terminal-bench-2.0"))
    assert "the sandboxes: namespaces against daytona" in found
    assert "attempts a task: 4 against 5" in found
    assert f"the harness (prompts, tool, how an episode goes): {'a' * 12} against 3ff2253afc6b" in found
    assert any(reason.startswith("not said by the source: the sampling temperature") for reason in found)


def test_a_record_under_the_same_settings_differs_only_in_what_was_not_said():
    benchmark = load_published().benchmark("terminal-bench-2.0")
    same = {name: value for name, value in benchmark.settings.items() if name != "without_verdict"}
    assert [reason[:21] for reason in reasons(record(pins=same), benchmark)] == ["not said by the source"[:21]]
    lost = reasons(record(pins=same, infrastructure_failures=1), benchmark)
    assert "what becomes of attempts without a verdict: left out against counted as 0" in lost


def test_a_benchmark_that_was_not_published_is_named(tmp_path):
    with pytest.raises(InputError, match="not published on x"):
        load_published().benchmark("x")
    path = tmp_path / "table.yaml"
    path.write_text(
        "name: t\nsources: []\nbenchmarks: []\n"
        "results: [{size: 1B, model: m, trained: true, benchmark: x, percent: 1}]\n"
    )
    with pytest.raises(InputError, match="not published on x"):
        load_published(path)
