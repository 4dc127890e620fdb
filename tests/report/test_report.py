"""The report page: what it says of full, early, failed and odd runs, and that it needs nothing but itself."""

import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console
from typer.testing import CliRunner

from leonardo.cli import app
from leonardo.errors import InputError
from leonardo.evaluation import Comparison, RunFacts, compare, read_record
from leonardo.report.claims import not_proven, proven
from leonardo.report.figure import Plot
from leonardo.report.page import render_page, render_report
from leonardo.report.plots import family_plot
from leonardo.report.run import read_run, series
from leonardo.report.summary import print_summary

SECTIONS = ["verdict", "figures", "proven", "not-proven", "pins", "training", "families", "sandbox", "failures",
            "configuration"]  # fmt: skip
PLOTS = {"reward", "groups", "mask", "ratio", "divergence", "norms", "actions", "time", "families", "sandbox"}


class Page(HTMLParser):
    """Ids in order, text, and attributes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.quiet = False
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.quiet = tag == "style"
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value)

    def handle_endtag(self, tag):
        self.quiet = False

    def handle_data(self, data):
        if not self.quiet:
            self.words.append(data)


def rendered(folder, title="Run") -> Page:
    return Page(render_report(folder, title).read_text())


def written(folder) -> Page:
    """The page without its plots, which take most of the time."""
    return Page(render_page(read_run(folder), "Run", [Plot(name, name, "") for name in ("families", "sandbox")]))


@pytest.fixture(scope="module")
def page(full_run) -> Page:
    return Page((full_run / "index.html").read_text())


def test_every_section_is_there_in_order_and_no_id_stands_twice(page):
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert len(page.ids) == len(set(page.ids))


def test_the_first_screen_says_what_was_shown_and_what_was_not(page):
    comparison = page.text[: page.text.index("Training improved")]
    assert "Learning" in comparison
    assert re.search(r"Base 36\.\d % .*Trained 62\.\d % .*\+26\.\d points", comparison)
    first_screen = page.text[: page.text.index("Mean verifier reward")]
    assert "5 failed for reasons of the infrastructure, and none of those was counted as a reward" in first_screen
    assert "tiny policy, generated desk tasks" in first_screen
    assert "held-json-3" in first_screen
    assert "1cce58a2627c" in first_screen


def test_the_page_tells_driver_substitutions_failures_and_configuration(page):
    assert "The sandboxes ran on the driver namespaces, not degraded." in page.text
    assert "ubuntu:22.04 is stood for by debian:12 (minbase) : no image registry is reached here" in page.text
    assert "runtime 5 4 0 the sandbox runtime failed" in page.text
    assert "dppo.divergence binary-tv" in page.text
    assert re.search(r"reset 9\.\d+ 1\d\.\d+ 1\d\.\d+", page.text)


def test_every_plot_is_inline_with_words_for_those_who_cannot_see_it_and_a_png_beside(page, full_run):
    assert {path.stem for path in (full_run / "plots").iterdir()} == PLOTS
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (full_run / "plots").iterdir())
    labels = [value for tag, name, value in page.attributes if (tag, name) == ("div", "aria-label")]
    assert sum(tag == "svg" and name == "viewbox" for tag, name, _ in page.attributes) == len(PLOTS)
    assert any(re.match(r"Mean reward: 0\.\d+ at step 1, 0\.\d+ at step 30", label) for label in labels)
    assert any("search base 33% trained 79%" in label for label in labels)


def test_the_page_needs_nothing_from_anywhere(full_run, page):
    html = (full_run / "index.html").read_text()
    assert "://" not in html
    assert "<script" not in html
    assert "@import" not in html
    links = [value for _, name, value in page.attributes if name in ("src", "href", "xlink:href", "data", "action")]
    assert links
    assert all(link.startswith("#") for link in links)
    assert set(re.findall(r"url\((.)", html)) == {"#"}
    assert {link.removeprefix("#") for link in links} <= set(page.ids)


def test_rendering_again_gives_the_same_page(full_run):
    before = (full_run / "index.html").read_bytes()
    assert render_report(full_run, "Desk demonstration").read_bytes() == before


def test_a_run_with_only_steps_says_what_is_missing(synthetic, tmp_path):
    page = rendered(synthetic.write(tmp_path, synthetic.steps(3)))
    assert "Incomplete 3 training steps ran, but base and trained have not been compared" in page.text
    for name in ("run.json", "evaluation-base.json", "evaluation-trained.json"):
        assert name in page.text
    assert "The driver was not recorded." in page.text
    assert {path.stem for path in (tmp_path / "plots").iterdir()} == PLOTS - {"families"}


def test_a_run_that_has_just_begun_gives_a_page(tmp_path):
    RunFacts(name="begun").write(tmp_path / "run.json")
    page = rendered(tmp_path)
    assert "no training step was recorded" in page.text.lower()
    assert "Nothing yet." in page.text


def test_a_folder_without_a_record_is_refused_and_nothing_written(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == InputError.exit_code
    assert not [*tmp_path.iterdir()]
    with pytest.raises(InputError, match="holds no record of a run"):
        render_report(tmp_path, "Run")


def test_the_page_goes_where_it_is_told_to(full_run, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in full_run.rglob("*")}
    result = CliRunner().invoke(app, ["report", str(full_run), "--out", str(tmp_path / "page")])
    assert result.output == f"report: {tmp_path / 'page/index.html'}\n"
    assert {path.stem for path in (tmp_path / "page/plots").iterdir()} == PLOTS
    assert {path: path.stat().st_mtime_ns for path in full_run.rglob("*")} == before


def test_a_run_of_zero_rewards_is_called_plumbing_and_never_learning(synthetic, tmp_path):
    steps = synthetic.steps(4, gain=-1)
    folder = synthetic.write(tmp_path, steps, synthetic.evaluation("b", 0.3), synthetic.evaluation("t", 0.6))
    page = written(folder)
    assert "Plumbing only, no learning" in page.text
    assert "Training improved" not in page.text
    assert "these steps had nothing to learn from" in page.text


def test_the_fallback_driver_is_said_in_words(synthetic, tmp_path):
    facts = synthetic.facts(driver="apptainer", fallback=True, degraded="only one uid is mapped")
    page = written(synthetic.write(tmp_path, synthetic.steps(2), facts=facts))
    said = "he sandboxes ran on the driver apptainer, the fallback where the preferred driver cannot be had. It was"
    assert page.text.count(said + " degraded: only one uid is mapped.") == 2


def test_records_under_different_pins_are_shown_but_not_compared(synthetic, tmp_path):
    base, trained = synthetic.evaluation("b", 0.3), synthetic.evaluation("t", 0.6)
    trained.pins["driver"] = "apptainer"
    folder = synthetic.write(tmp_path, synthetic.steps(2))
    base.write(folder / "evaluation-base.json")
    trained.write(folder / "evaluation-trained.json")
    page = written(folder)
    assert "pin driver differs, namespaces against apptainer" in page.text
    assert "not compared" in page.text
    assert "Incomplete" in page.text


def test_records_without_a_comparison_file_are_compared_here(synthetic, tmp_path):
    folder = synthetic.write_full(tmp_path)
    (folder / "comparison.json").unlink()
    assert "Training improved the policy" in written(folder).text


def test_a_step_cut_short_at_the_end_is_left_out_and_said(synthetic, tmp_path):
    folder = synthetic.write(tmp_path, synthetic.steps(3))
    path = folder / "steps.jsonl"
    path.write_text(path.read_text()[:-40])
    assert "cut short and left out (line 3" in written(folder).text
    assert len(read_run(folder).steps) == 2


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("steps.jsonl", '{"step": 1}\nnot json\n{"step": 3}\n', "line 2 is not a step record"),
        ("steps.jsonl", '{"step": 1}\n[]\n{"step": 3}\n', "line 2 is not a step record"),
        ("run.json", '{"driver": 3}', r"run\.json: not a valid RunFacts: driver"),
        ("comparison.json", "{", r"comparison\.json"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused_by_name(tmp_path, name, content, named):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=named):
        render_report(tmp_path, "Run")
    assert not (tmp_path / "index.html").exists()


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such run folder"):
        render_report(tmp_path / "none", "Run")


def test_odd_values_in_steps_leave_gaps_not_errors(synthetic, tmp_path):
    steps = synthetic.steps(4)
    steps[1] |= {"reward_mean": None, "update_norm": float("nan"), "sandbox": None, "times": {}, "rewards": []}
    steps[2] = {"step": 3}
    folder = synthetic.write(tmp_path, steps)
    assert "Incomplete" in rendered(folder).text
    assert series(read_run(folder).steps, "update_norm")[0] == [1, 4]
    assert series(read_run(folder).steps, "sandbox.reset_ms", 1)[0] == [1, 4]


def test_names_from_records_cannot_become_markup(synthetic, tmp_path):
    facts = synthetic.facts(degraded="<b id=evil>&$x$", configuration={"<i id=evil>": "<script>"})
    base, trained = synthetic.evaluation("b", 0.3), synthetic.evaluation("t", 0.6)
    for record in (base, trained):
        for task in record.tasks:
            task.family = "<u id=evil>$f_1$ --> " if task.family == "json" else task.family
    page = rendered(synthetic.write(tmp_path, synthetic.steps(2), base, trained, facts), "<h1 id=evil>")
    assert "evil" not in page.ids
    assert "<u id=evil>$f_1$" in page.text
    assert "&lt;u id=evil&gt;$f_1$" in family_plot(compare(base, trained)).svg


def test_claims_follow_the_records(synthetic, tmp_path):
    steps = synthetic.steps(3)
    assert any("finite losses" in said for said in proven(read_run(synthetic.write(tmp_path, steps))))
    steps[0] |= {"finite": False, "first_pass_ratio_max_deviation": 1.5}
    steps[1]["infrastructure_failures"] += 5  # more failures than the rewards leave room for
    for step in steps:
        step["mask_fraction"] = 0.0
    run = read_run(synthetic.write(tmp_path, steps))
    assert not any("finite losses" in said or "agree on log" in said for said in proven(run))
    assert not any("none of those was counted as a reward" in said for said in proven(run))
    open_questions = " ".join(not_proven(run))
    for said in ("steps 1 had values that are not finite", "strayed from 1 by 1.5", "never masked a token"):
        assert said in open_questions


def test_many_excluded_attempts_are_said_not_to_be_covered(synthetic, tmp_path):
    lost = [f"held-text-{number}" for number in range(4)]
    base, trained = synthetic.evaluation("b", 0.3), synthetic.evaluation("t", 0.6, failing=lost)
    said = " ".join(not_proven(read_run(synthetic.write(tmp_path, synthetic.steps(2), base, trained))))
    assert "The trained rate over all attempts: 16 of 240 were excluded" in said
    assert "Anything on 4 tasks without a valid attempt on both sides: held-text-0" in said


def test_the_terminal_summary_shows_the_same_figures(full_run):
    comparison = read_record(full_run / "comparison.json", Comparison)
    console = Console(width=100, record=True, file=io.StringIO())
    print_summary(comparison, console)
    text = console.export_text()
    whole = next(line for line in text.splitlines() if " all " in line)
    assert f"{100 * comparison.difference.value:+.1f}" in whole
    assert f"{100 * comparison.base.value:.1f} %" in whole
    assert "base: 4 attempts failed" in text
    assert "held-json-3" in text


def test_facts_are_plain_json(full_run):
    assert json.loads((full_run / "run.json").read_text())["substitutions"][0]["asked"] == "ubuntu:22.04"
