"""The scripts that shipped sites, stages and models give; ``python -m tests.jobs.shipped`` writes the golden files."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from leonardo.jobs.plan import JobPlan
from leonardo.jobs.render import render
from leonardo.settings import LAUNCH
from leonardo.site import load_site
from leonardo.stages.definition import load_model
from leonardo.stages.ladder import ladder
from leonardo.stages.launch import plan_stage
from leonardo.stages.launch_arrays import Evaluated, plan_assets, plan_evaluation
from leonardo.stages.launch_choices import Choices
from leonardo.stages.policies import Checkpoint

GOLDEN = Path(__file__).parent / "golden"
WORK = Path("/leonardo_work/project/tmax-leonardo")
CODE = WORK / "code"
VARIABLES = {"WORK": "/leonardo_work/project", "SCRATCH": "/leonardo_scratch/large/you", "LEONARDO_ACCOUNT": "project"}


def plans() -> Iterator[JobPlan]:
    """The plans, as they would be on the cluster. Needs :data:`VARIABLES` in the environment, and no LEONARDO_CACHE."""
    choices = Choices(
        project=CODE,
        python=CODE / ".venv/bin/python",
        upstream_python=CODE / ".venv-upstream/bin/python",
        upstream=CODE / "upstream",
    )
    references = [model for path in models() if (model := load_model(path.stem)).shapes and model.start != "desk"]
    for path in sorted((LAUNCH / "sites").glob("*.yaml")):
        site = load_site(path)
        if site.cluster is None:
            continue
        own = replace(choices, site=site.name)
        for stage in ladder():
            folder = WORK / "runs" / f"{stage.name}-job-20260101T000000"
            if stage.rows:
                upstream = replace(own, engine="upstream")
                yield from (plan_stage(stage, model, site, folder, upstream) for model in references)
                if "cpu" in site.cluster.pools:
                    apart = replace(upstream, sandbox_pool="cpu", sandbox_nodes=2)
                    plan = plan_stage(stage, references[0], site, folder, apart)
                    yield replace(plan, name=f"{plan.name}-apart")
                continue
            model = load_model(stage.model)
            for engine in ("desk", "upstream"):
                yield plan_stage(stage, model, site, folder, replace(own, engine=engine))
        policies = [Checkpoint(name, WORK / "models" / name) for name in ("base", "trained")]
        held_out = Evaluated(policies, WORK / "data/held-out.jsonl", parts=4, attempts=4)
        yield plan_evaluation(site, held_out, WORK / "runs/evaluate-job-20260101T000000", own)
        yield plan_assets(site, WORK / "data/rows.jsonl", 8, WORK / "runs/assets-job-20260101T000000", own)


def models() -> list[Path]:
    """The shipped models' files."""
    return sorted((LAUNCH / "models").glob("*.yaml"))


def golden(plan: JobPlan) -> Path:
    """The golden file of a plan."""
    return GOLDEN / f"{plan.pins['site']}-{plan.name}.sh"


def main() -> None:
    """Write them anew."""
    os.environ.pop("LEONARDO_CACHE", None)
    os.environ.update(VARIABLES)
    scripts = {golden(plan): render(plan) for plan in plans()}
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.sh"):
        old.unlink()
    for path, script in scripts.items():
        path.write_text(script)


if __name__ == "__main__":
    main()
