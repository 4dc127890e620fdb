"""What has to be done for a task, and how set-ups are run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from leonardo.assets import compat
from leonardo.assets.bases import Base
from leonardo.assets.manifest import SetUpRecord
from leonardo.errors import FailureClass, InputError
from leonardo.sandbox.driver import Driver, Limits
from leonardo.site import normal_image
from leonardo.tasks.definition import UnsupportedDefinition, parse_definition
from leonardo.tasks.task import Task

RECIPE_VERSION = 3
"""Raise it where the same script on the same base would now leave something else."""

SET_UP_TIMEOUT = 900.0
"""Seconds that a set-up may take."""

Adapt = Callable[[str, str, Base], compat.Adaptation]
"""What compat rules make of a script and a verifier on a base."""


@dataclass(frozen=True)
class Plan:
    """What has to be done for a task.

    Attributes:
        image: its base image, by its normal name.
        post: its set-up script, ``""`` if there is none.
        environment: variables that its definition adds, and those of compat rules.
        adaptation: what compat rules made of the script; ``post`` is its outcome.
    """

    image: str
    post: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    adaptation: compat.Adaptation = compat.NONE


def plan_of(task: Task) -> Plan:
    """What has to be done for ``task``. Raises InputError where its definition is none, or asks for too much."""
    if not task.definition:
        return Plan(normal_image(task.image))
    definition = parse_definition(task.definition)
    return Plan(normal_image(definition.image), definition.post, definition.environment)


class Planner:
    """What has to be done for tasks on this machine, by compat rules."""

    def __init__(self, driver: Driver, rules: Sequence[compat.Rule]) -> None:
        self._driver = driver
        self._rules = rules

    @property
    def rules(self) -> str:
        """Digest of the rules."""
        return compat.rules_digest(self._rules)

    def plan(self, task: Task) -> Plan | SetUpRecord:
        """What is to be done for a task, or why it cannot be. Raises InputError where its definition is none."""
        try:
            return plan_of(task)
        except UnsupportedDefinition as error:
            return SetUpRecord(key="", failure=FailureClass.UNSUPPORTED, reason=str(error))
        except InputError as error:
            raise InputError(f"Task {task.id}: {error.what}", error.hint) from error

    def adapt(self, script: str, verifier: str, base: Base) -> compat.Adaptation:
        """What the rules make of a script and a verifier on a base."""
        lacks = compat.lacking(one_id=self._driver.one_id, substituted=bool(base.substitution))
        return compat.adapt(script, verifier, self._rules, lacks)

    def adapted(self, plan: Plan, task: Task, base: Base) -> Plan:
        """``plan`` as the rules make it."""
        if not plan.post:
            return plan
        verifier = "\n".join(content.decode(errors="replace") for _, content in sorted(task.tests.items()))
        adaptation = self.adapt(plan.post, verifier, base)
        environment = {**adaptation.environment, **plan.environment}
        return replace(plan, post=adaptation.script, environment=environment, adaptation=adaptation)


@dataclass(frozen=True)
class BuildSettings:
    """How set-ups are run.

    Attributes:
        timeout: seconds that one may take.
        limits: its bounds.
        retries: how often one is tried again whose mirror did not answer or sent damaged packages.
        downloads: package layers that are made at a time, whatever the number of jobs.
        offline: there is no network: nothing is begun that needs one.
        split: packages get layers of their own.
    """

    timeout: float = SET_UP_TIMEOUT
    limits: Limits = Limits(disk=4 << 30, memory=8 << 30, processes=4096)
    retries: int = 2
    downloads: int = 2
    offline: bool = False
    split: bool = True
