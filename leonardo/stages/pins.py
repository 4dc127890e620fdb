"""What a run is pinned to, and which of it has to be the same in the stage that a run builds on."""

import json
import platform
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import leonardo.tasks.desk
from leonardo.engine.upstream import COMMIT
from leonardo.engine.upstream.dataset import WRITTEN, dataset_in
from leonardo.evaluation.compare import ABSENT
from leonardo.evaluation.harness import EVALUATION_SEED, harness_digest
from leonardo.evidence.explain import shown
from leonardo.files import digest_of, flat, sha256_bytes, sha256_file
from leonardo.overlay.stack import read_stack
from leonardo.rollout.families import load_family
from leonardo.site import Site
from leonardo.stages.definition import Model, Stage

PROJECT = Path(__file__).parents[2]

PACKAGES = ("accelerate", "numpy", "safetensors", "scipy", "tokenizers", "torch", "transformers")
"""Those that take part in what comes out."""

SAME = (
    "site", "driver", "engine", "model", "family", "base_policy", "harness", "data", "bases", "packages", "recipe",
)  # fmt: skip
"""Pins that a stage shares with the stage it builds on; the sizes of a stage are its own."""

SAME_UPSTREAM = ("upstream", "patches")
"""Those of the engine ``upstream``, besides: nothing of it runs in the engine ``desk``."""

SAME_ON_OTHER_DATA = ("site", "driver", "engine", "packages")
"""What a stage on rows shares with the stage on the desk corpus below it: the machinery. Model, bounds of an episode
and recipe are the rows' own."""

SAME_AS_GATES = ("site", "driver", "bases")
"""What the environment gates vouch for: sandboxes on these base images, at this site. They train nothing."""


def known_pins(
    stage: Stage, model: Model, engine: str, site: Site, driver: str, seed: int, environment: Path | None = None
) -> dict[str, Any]:
    """The pins that are known before anything has run; base images and base policy come later.

    Args:
        environment: of upstream's trainer, where it is the engine.
    """
    injected = stage.learner().faults.injected if engine == "desk" else []
    return {
        "upstream": COMMIT,
        "patches": read_stack(PROJECT / "patches").digest,
        "overlay": overlay(),
        "site": site.name,
        "driver": driver,
        "engine": engine,
        "stage": stage.name,
        "model": model.name,
        "family": load_family(model.family).digest,
        "seed": seed,
        "evaluation_seed": EVALUATION_SEED,
        "harness": harness_digest(stage.episode_settings()),
        "data": data_pins(stage, site),
        "packages": packages(environment),
        "recipe": stage.recipe(engine, model),
        "config": digest_of(stage.model_dump(mode="json")),
        **({"injected": injected} if injected else {}),
    }


def differences(pins: Mapping[str, Any], before: Mapping[str, Any], of_gates: bool) -> Iterator[str]:
    """Each pin of ``before`` that has to be as in ``pins`` and is not, in words with both values."""
    same = SAME if _source(pins) == _source(before) else SAME_ON_OTHER_DATA
    names = SAME_AS_GATES if of_gates else same + (SAME_UPSTREAM if pins.get("engine") == "upstream" else ())
    here, there = ({name: values[name] for name in names if name in values} for values in (pins, before))
    mine, other = flat(here), flat(there)
    for name in mine if of_gates else sorted(mine.keys() | other.keys()):
        if name.split(".")[0] in here and mine.get(name, ABSENT) != other.get(name, ABSENT):
            yield f"{name} is {shown(mine.get(name, ABSENT))}, there it was {shown(other.get(name, ABSENT))}"


def _source(pins: Mapping[str, Any]) -> Any:
    data = pins.get("data")
    return data.get("source") if isinstance(data, Mapping) else None


def data_pins(stage: Stage, site: Site) -> dict[str, Any]:
    """What a stage trains on: the desk corpus, or rows, by digests of them and of the prepared states they name."""
    if not stage.rows:
        return {"source": "desk", "revision": desk_revision()}
    if site.cluster is None:
        return {"source": stage.rows, "revision": ""}
    dataset = dataset_in(site.cluster.roots.shared / stage.rows)
    rows = dataset.folder / "train.jsonl"
    written = dataset.folder.parent / WRITTEN
    return {
        "source": stage.rows,
        "revision": sha256_file(rows) if rows.is_file() else "",
        **(json.loads(written.read_bytes()) if written.is_file() else {}),
    }


def packages(environment: Path | None = None) -> dict[str, str]:
    """Versions of what takes part in what comes out; with the lock of upstream's environment where there is one."""
    versions = {name: metadata.version(name) for name in PACKAGES}
    ready = environment / ".ready" if environment else None
    lock = {"lock": sha256_file(ready)} if ready and ready.is_file() else {}
    return {"python": ".".join(platform.python_version_tuple()[:2]), **versions, **lock}


@cache
def desk_revision() -> str:
    """Names the generator of the desk's tasks by its sources."""
    folder = Path(leonardo.tasks.desk.__file__).parent
    return digest_of([[path.name, sha256_bytes(path.read_bytes())] for path in sorted(folder.glob("*.py"))])


@cache
def overlay() -> str:
    """This repository's commit, with a mark where files differ from it; recorded, never compared; "" without git."""
    try:
        import git  # which fails where there is no git
    except ImportError:
        return ""
    try:
        repository = git.Repo(PROJECT)
        return repository.head.commit.hexsha + ("+edited" if repository.is_dirty(submodules=False) else "")
    except (git.InvalidGitRepositoryError, git.NoSuchPathError, git.GitCommandError, ValueError):
        return ""
