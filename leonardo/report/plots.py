"""The report's plots: what is drawn of a run's steps and of its comparison."""

from collections.abc import Sequence
from functools import partial

import numpy
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from leonardo.evaluation.records import Comparison
from leonardo.evaluation.verdict import StepMapping
from leonardo.report.figure import BLUE, GREEN, INK, MUTED, ORANGE, Plot, draw_plot
from leonardo.report.run import series

WINDOW = 5
"""Steps in the running mean."""


def step_plots(steps: Sequence[StepMapping]) -> list[Plot]:
    """The curves of a training run."""
    return [
        draw_plot(name, title, caption, partial(draw, steps=steps), _in_words(steps, field, words))
        for name, title, draw, field, words, caption in STEP_PLOTS
    ]


def sandbox_plot(steps: Sequence[StepMapping]) -> Plot:
    """Reset, command and destroy times by step."""
    return draw_plot(
        "sandbox", "Sandbox times", "Solid: median of the step's operations; dotted: 95th percentile. Logarithmic.",
        partial(_sandbox, steps=steps), _in_words(steps, "sandbox.reset_ms", "Median reset in ms", 0), wide=True,
    )  # fmt: skip


def family_plot(comparison: Comparison | None) -> Plot:
    """Base against trained, a row a family."""
    families = comparison.families if comparison else []
    said = "; ".join(
        f"{family.family} base {family.base.value:.0%} trained {family.trained.value:.0%}"
        for family in families
        if family.base.value is not None and family.trained.value is not None
    )
    return draw_plot(
        "families", "Pass rate by family", "Dots: pass rates; bars: 95 % intervals, tasks resampled. A family has few "
        "tasks, so its interval describes rather than proves.",
        lambda axes: _families(axes, comparison), f"Pass rate by family: {said}.", wide=True, rows=len(families),
    )  # fmt: skip


def _in_words(steps: Sequence[StepMapping], field: str, words: str, position: int | None = None) -> str:
    numbers, values = series(steps, field, position)
    if not values:
        return words
    return (
        f"{words}: {values[0]:.3g} at step {numbers[0]}, {values[-1]:.3g} at step {numbers[-1]}, "
        f"lowest {min(values):.3g}, highest {max(values):.3g}."
    )


def _steps_axis(axes: Axes, label: str) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(x=0.02)


def _percent_axis(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _running_mean(values: Sequence[float]) -> list[float]:
    return [float(numpy.mean(values[max(0, end - WINDOW) : end])) for end in range(1, len(values) + 1)]


def _reward(axes: Axes, steps: Sequence[StepMapping]) -> bool:
    drawn = _curve(axes, steps, "reward_mean", "mean reward", BLUE)
    axes.set_ylim(0, 1)
    return drawn


def _mask(axes: Axes, steps: Sequence[StepMapping]) -> bool:
    return _curve(axes, steps, "mask_fraction", "masked share", ORANGE)


def _ratio(axes: Axes, steps: Sequence[StepMapping]) -> bool:
    axes.axhline(1, color=MUTED, linewidth=0.8)
    return _mean_and_maximum(axes, steps, "ratio")


def _divergence(axes: Axes, steps: Sequence[StepMapping]) -> bool:
    return _mean_and_maximum(axes, steps, "divergence")


def _curve(axes: Axes, steps: Sequence[StepMapping], field: str, label: str, colour: str) -> bool:
    numbers, values = series(steps, field)
    if not values:
        return False
    few = len(values) <= WINDOW
    axes.plot(
        numbers, values, color=colour, alpha=1 if few else 0.4, linewidth=1, marker="o", markersize=2.5, label="step"
    )
    if not few:
        axes.plot(numbers, _running_mean(values), color=colour, linewidth=2, label=f"mean of {WINDOW} steps")
    _percent_axis(axes)
    axes.set_ylim(0, max(1.15 * max(values), 1e-4))
    _steps_axis(axes, label)
    return True


def _groups(axes: Axes, steps: Sequence[StepMapping]) -> bool:
    numbers, failed, mixed = [], [], []
    for place, step in enumerate(steps, start=1):
        valid = [[reward for reward in group if reward is not None] for group in step.get("rewards") or ()]
        valid = [group for group in valid if group]
        if valid:
            numbers.append(int(step.get("step", place)))
            failed.append(sum(max(group) == 0 for group in valid) / len(valid))
            mixed.append(sum(min(group) != max(group) for group in valid) / len(valid))
    line = series(steps, "zero_variance_share")
    if len(numbers) > 1:
        passed = [1 - left - right for left, right in zip(failed, mixed, strict=True)]
        names = ["all failed", "all passed", "mixed"]
        axes.stackplot(
            numbers, failed, passed, mixed, colors=[ORANGE, GREEN, BLUE], labels=names, alpha=0.6, linewidth=0
        )
    elif not line[1]:
        return False
    if line[1]:
        axes.plot(*line, color=INK, linewidth=1.2, marker="o", markersize=2, label="filtered")
    _percent_axis(axes)
    axes.set_ylim(0, 1)
    _steps_axis(axes, "share of groups")
    return True


def _mean_and_maximum(axes: Axes, steps: Sequence[StepMapping], name: str) -> bool:
    mean, maximum = series(steps, f"{name}_mean"), series(steps, f"{name}_max")
    if not (mean[1] or maximum[1]):
        return False
    axes.plot(*maximum, color=ORANGE, linestyle=(0, (4, 2)), marker="s", markersize=2, label="largest")
    axes.plot(*mean, color=BLUE, marker="o", markersize=2, label="mean")
    _steps_axis(axes, name)
    return True


def _norms(axes: Axes, steps: Sequence[StepMapping]) -> bool:
    gradient, update = series(steps, "gradient_norm"), series(steps, "update_norm")
    if not (gradient[1] or update[1]):
        return False
    axes.plot(*gradient, color=ORANGE, linestyle=(0, (4, 2)), marker="s", markersize=2, label="gradient norm")
    axes.plot(*update, color=BLUE, marker="o", markersize=2, label="update norm")
    if max([*gradient[1], *update[1]]) > 0:
        _logarithmic(axes)
    _steps_axis(axes, "norm")
    return True


def _actions(axes: Axes, steps: Sequence[StepMapping]) -> bool:
    parsed, entropy = series(steps, "parsed_action_share"), series(steps, "entropy_mean")
    if not (parsed[1] or entropy[1]):
        return False
    axes.plot(*parsed, color=BLUE, marker="o", markersize=2, label="parsed actions (share)")
    axes.plot(*entropy, color=ORANGE, linestyle=(0, (4, 2)), marker="s", markersize=2, label="entropy (nats)")
    axes.set_ylim(bottom=0)
    _steps_axis(axes, "")
    return True


def _times(axes: Axes, steps: Sequence[StepMapping]) -> bool:
    numbers, whole = series(steps, "times.step")
    if not numbers:
        return False
    floor = numpy.zeros(len(numbers))
    for part, colour in (("rollout", BLUE), ("update", ORANGE), ("hand_over", GREEN)):
        seconds = series(steps, f"times.{part}")
        if seconds[0] != numbers:
            continue
        label = part.replace("_", " ")
        axes.bar(numbers, seconds[1], bottom=floor, width=0.85, color=colour, alpha=0.75, label=label)
        floor = floor + numpy.array(seconds[1])
    axes.plot(numbers, whole, color=INK, linewidth=1, label="whole step")
    axes.set_ylim(bottom=0)
    _steps_axis(axes, "seconds")
    return True


def _sandbox(axes: Axes, steps: Sequence[StepMapping]) -> bool:
    drawn = False
    for name, colour, marker in (("reset", BLUE, "o"), ("command", ORANGE, "s"), ("destroy", GREEN, "^")):
        median, tail = (series(steps, f"sandbox.{name}_ms", position) for position in (0, 1))
        if median[1]:
            axes.plot(*median, color=colour, marker=marker, markersize=3, label=name)
            axes.plot(*tail, color=colour, linestyle=":", linewidth=1.2)
            drawn = True
    if drawn:
        _logarithmic(axes)
        _steps_axis(axes, "milliseconds")
    return drawn


def _families(axes: Axes, comparison: Comparison | None) -> bool:
    if comparison is None or not comparison.families:
        return False
    families = sorted(comparison.families, key=lambda family: family.difference.value or 0)
    sides = (("base", BLUE, "o", 0.14), ("trained", ORANGE, "s", -0.14))
    for side, colour, marker, shift in sides:
        rates = [(row, getattr(family, side)) for row, family in enumerate(families)]
        rates = [(row + shift, rate) for row, rate in rates if rate.value is not None]
        axes.hlines([row for row, _ in rates], *zip(*(rate.interval for _, rate in rates), strict=True), color=colour,
                    linewidth=2.2, alpha=0.45)  # fmt: skip
        axes.plot([rate.value for _, rate in rates], [row for row, _ in rates], linestyle="", marker=marker,
                  markersize=5.5, color=colour, label=side)  # fmt: skip
    axes.set_yticks(range(len(families)), [family.family for family in families], color=INK)
    axes.set_ylim(-0.6, len(families) - 0.4)
    axes.set_xlim(-0.02, 1.02)
    axes.grid(axis="x")
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.tick_params(axis="y", length=0)
    return True


STEP_PLOTS = (
    ("reward", "Reward", _reward, "reward_mean", "Mean reward",
     "Mean verifier reward of the step's rollouts, infrastructure failures left out."),
    ("groups", "Filtered groups", _groups, "zero_variance_share", "Share of filtered groups",
     "Groups that all failed or all passed carry no advantage and are filtered out; only mixed ones train the policy."),
    ("mask", "Masked tokens", _mask, "mask_fraction", "Mask fraction",
     "Share of response tokens whose update the trust region masked."),
    ("ratio", "Policy ratio", _ratio, "ratio_max", "Largest ratio",
     "A token's probability under the learner over that under the rollout policy; 1 means that both agree."),
    ("divergence", "Divergence", _divergence, "divergence_max", "Largest divergence",
     "Divergence between rollout policy and learner, by token: the quantity that the trust region bounds."),
    ("norms", "Gradient and update", _norms, "update_norm", "Update norm",
     "Norms of the gradient and of the change that it made to the weights."),
    ("actions", "Actions and entropy", _actions, "parsed_action_share", "Parsed-action share",
     "Share of turns whose tool call could be parsed, and the policy's mean entropy a token."),
    ("time", "Time a step", _times, "times.step", "Seconds a step",
     "Where a step's seconds went."),
)  # fmt: skip
"""Name, title, drawing, and the field that the alternative text tells in words; then the caption."""
