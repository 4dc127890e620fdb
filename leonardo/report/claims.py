"""What a run has proven and what it has not, in sentences for the report's first screen."""

from leonardo.evaluation.verdict import MINIMUM_PAIRS, interval_points, percent, points, rewards, verdict
from leonardo.report.run import Run, series, total

EXCLUDED_SHARE = 0.02
"""From this share of excluded attempts on, a difference could owe something to what was excluded."""

AGREEMENT = 0.25
"""The largest ratio deviation before an update that two engines in bfloat16 may show and still agree."""


def proven(run: Run) -> list[str]:
    """Sentences that the records bear out."""
    return [*_proven_by_evaluation(run), *proven_by_steps(run)]


def _proven_by_evaluation(run: Run) -> list[str]:
    said = []
    if comparison := run.comparison:
        difference = comparison.difference
        if verdict(comparison, run.steps).kind == "learning":
            attempts = comparison.pins.get("attempts")
            said.append(
                f"Training improved the policy on {difference.pairs} tasks"
                + (f", {attempts} attempts each" if attempts else "")
                + f": {points(difference.value)} points, {interval_points(difference.interval)}. "
                f"{difference.better} tasks went up, {difference.worse} down."
            )
        said.append(
            "Base and trained met the same tasks, prompts, sampling, seeds and sandbox: a comparison under "
            "different pins would have been refused."
        )
    return said


def proven_by_steps(run: Run) -> list[str]:
    """What its training alone bears out."""
    said = []
    steps = run.steps
    if steps and all(step.get("finite") is True for step in steps):
        said.append(f"All {len(steps)} steps had finite losses, gradients and weights.")
    updates = series(steps, "update_norm")[1]
    if updates and (moved := sum(value > 0 for value in updates)):
        said.append(f"Weights moved in {moved} of {len(updates)} steps.")
    ratios = series(steps, "first_pass_ratio_max_deviation")[1]
    if ratios and max(ratios) <= AGREEMENT:
        said.append(
            "Rollout policy and learner agree on log-probabilities: before an update the ratio strays from 1 by at "
            f"most {max(ratios):.2g}."
        )
    if rollouts := total(steps, "rollouts"):
        failed = total(steps, "infrastructure_failures")
        left_out = sum(1 for _ in rewards(steps)) + failed <= rollouts
        said.append(
            f"{rollouts:,} training rollouts ran; {failed:,} failed for reasons of the infrastructure"
            + (", and none of those was counted as a reward." if left_out else ".")
        )
    return said


def not_proven(run: Run) -> list[str]:
    """Sentences on what the records leave open, what the run itself says it cannot show among them."""
    return [*_left_open_by_evaluation(run), *left_open_by_steps(run), *left_open_by_machine(run), *run.facts.limits]


def _left_open_by_evaluation(run: Run) -> list[str]:
    comparison = run.comparison
    if comparison is None:
        return ["Whether training improved the policy: base and trained have not been compared."]
    said = []
    kind = verdict(comparison, run.steps).kind
    difference = comparison.difference
    if kind == "plumbing":
        said.append("Learning. Whatever the evaluation shows, these steps had nothing to learn from.")
    elif kind == "no-difference":
        said.append(f"That training helped: {interval_points(difference.interval)} includes 0.")
    elif kind == "regression":
        said.append("That training helped: the trained policy is worse.")
    elif kind == "incomplete" and difference.pairs < MINIMUM_PAIRS:
        said.append(f"Any difference: {difference.pairs} paired tasks are too few.")
    open_families = [
        family.family
        for family in comparison.families
        if family.difference.interval is None or family.difference.interval[0] <= 0
    ]
    if open_families and kind == "learning":
        said.append(
            f"A gain in every family: for {len(open_families)} of {len(comparison.families)} the interval includes 0 "
            f"({', '.join(open_families)})."
        )
    for name, side in (("base", comparison.base), ("trained", comparison.trained)):
        if side.excluded and side.excluded >= EXCLUDED_SHARE * (side.attempts + side.excluded):
            said.append(
                f"The {name} rate over all attempts: {side.excluded} of {side.attempts + side.excluded} were excluded "
                f"as infrastructure failures ({percent(side.excluded / (side.attempts + side.excluded))})."
            )
    if difference.excluded:
        said.append(
            f"Anything on {_tasks(len(difference.excluded))} without a valid attempt on both sides: "
            f"{', '.join(difference.excluded[:5])}{' ...' if len(difference.excluded) > 5 else ''}."
        )
    return said


def left_open_by_steps(run: Run) -> list[str]:
    """What its training leaves open."""
    said = []
    broken = [str(step.get("step", "?")) for step in run.steps if step.get("finite") is False]
    if broken:
        said.append(f"Numerical health: steps {', '.join(broken[:10])} had values that are not finite.")
    ratios = series(run.steps, "first_pass_ratio_max_deviation")[1]
    if ratios and max(ratios) > AGREEMENT:
        said.append(
            "That rollout policy and learner are the same model: before an update the ratio strayed from 1 by "
            f"{max(ratios):.2g}."
        )
    masked = series(run.steps, "mask_fraction")[1]
    if masked and max(masked) == 0:
        said.append("That the trust region works: it never masked a token in this run.")
    return said


def left_open_by_machine(run: Run) -> list[str]:
    """What sandboxes and base images leave open."""
    said = []
    if run.facts.fallback or run.facts.degraded:
        said.append(f"How the full sandbox does: t{driver_in_words(run)[1:]}")
    if run.facts.substitutions:
        asked = sorted({substitution.asked for substitution in run.facts.substitutions})
        said.append(
            f"The same on the base images that the tasks name: {', '.join(asked)} had to be stood for by others."
        )
    return said


def _tasks(count: int) -> str:
    return f"{count} task" if count == 1 else f"{count} tasks"


def driver_in_words(run: Run) -> str:
    """Which sandbox driver ran, whether it is the fallback, and why it is degraded if it is."""
    facts = run.facts
    name = facts.driver or str((run.comparison.pins if run.comparison else {}).get("driver", ""))
    if not name:
        return "The driver was not recorded."
    said = f"The sandboxes ran on the driver {name}"
    said += ", the fallback where the preferred driver cannot be had" if facts.fallback else ""
    return f"{said}. It was degraded: {facts.degraded.rstrip('.')}." if facts.degraded else f"{said}, not degraded."
