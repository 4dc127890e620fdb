"""The scripts that shipped sites, stages and models give; ``python -m tests.jobs.shipped`` writes the golden files."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from leonardo.jobs.plan import JobPlan
from leonardo.jobs.render import render
from leonardo.settings import LAUNCH
from leonardo.site import load_site
from leonardo.stages.definition import Stage, load_model, load_stage
from leonardo.stages.launch import Choices, plan_assets, plan_stage

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
        tree=CODE / "upstream",
    )
    references = [model for path in models() if (model := load_model(path.stem)).shapes and model.start != "desk"]
    for path in sorted((LAUNCH / "sites").glob("*.yaml")):
        site = load_site(path)
        if site.cluster is None:
            continue
        own = replace(choices, site=site.name)
        for stage in stages():
            folder = WORK / "runs" / f"{stage.name}-job-20260101T000000"
            if stage.rows:
                upstream = replace(own, engine="upstream")
                yield from (plan_stage(stage, model, site, folder, upstream) for model in references)
                continue
            model = load_model(stage.model)
            for engine in ("desk", "upstream"):
                yield plan_stage(stage, model, site, folder, replace(own, engine=engine))
        yield plan_assets(site, WORK / "data/rows.jsonl", 8, WORK / "runs/assets-job-20260101T000000", own)


def stages() -> list[Stage]:
    """The shipped stages; a study in a form of its own is none."""
    found = []
    for path in sorted((LAUNCH / "stages").glob("*.yaml")):
        if "criteria" in yaml.safe_load(path.read_text()):
            found.append(load_stage(path.stem))
    return found


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
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.sh"):
        old.unlink()
    for plan in plans():
        golden(plan).write_text(render(plan))


if __name__ == "__main__":
    main()
