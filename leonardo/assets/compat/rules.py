"""Compat rules: what has to be done differently where a set-up meets a site, as data (``launch/compat/*.yaml``).

A rule is narrow: it says by a pattern which set-ups it is for, and by a facility at which sites, and does nothing to
any other. Its id and version, with its content, are part of the key of every set-up that it touched.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from leonardo.errors import FailureClass, InputError
from leonardo.files import digest_of
from leonardo.settings import at, read_yaml

RULES = Path(__file__).parents[3] / "launch" / "compat"


class Facility(StrEnum):
    """What a site may lack. The first three no sandbox has, as no unprivileged container has them."""

    INIT = "init"
    """A process 1 that starts services."""
    MOUNTS = "mounts"
    """Mounts, loop devices, swap, modules, device nodes, settings of the kernel."""
    NETWORK = "network-at-run-time"
    PORTS = "own-ports-in-set-up"
    """A set-up has the machine's network, and with that shares its ports."""
    USER_IDS = "user-ids"
    """More than one user id in a sandbox."""
    ORIGINAL_IMAGE = "original-image"
    """The image that the definition names, not a substitute."""


def lacking(*, one_id: bool, substituted: bool) -> frozenset[Facility]:
    """What a site lacks whose sandboxes have one user id or more, on a base that is the image or stands in for it."""
    always = {Facility.INIT, Facility.MOUNTS, Facility.NETWORK, Facility.PORTS}
    own = {Facility.USER_IDS: one_id, Facility.ORIGINAL_IMAGE: substituted}
    return frozenset(always | {facility for facility, missing in own.items() if missing})


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression ({error})") from error
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Match(_Strict):
    """Which set-ups a rule is for; everything that is given must hold.

    Attributes:
        command: a command of the set-up begins with one of these, after a path, ``sudo``, ``env`` and assignments; a
            line that is continued is one.
        fatal: of these commands only those count whose failure would end the script.
        unless_command: no command of the set-up begins with one of these.
        verifier: somewhere in the verifier's files.
        lacks: the site lacks all of these.
    """

    command: Patterns = ()
    fatal: bool = False
    unless_command: Patterns = ()
    verifier: Pattern = ""
    lacks: tuple[Facility, ...] = ()


class Rewrite(_Strict):
    """In each command that matched, ``pattern`` becomes ``by`` (which may refer to its groups)."""

    pattern: Pattern
    by: str


class Skip(_Strict):
    """The set-up is not run: its task has this failure."""

    failure: FailureClass
    reason: str = Field(min_length=1)


class Effect(_Strict):
    """What a rule does.

    Attributes:
        environment: variables of every command in the prepared state.
        set_up_environment: variables of the set-up only.
        shims: programs (name -> script) that the set-up finds where the image has none of that name.
        overriding_shims: programs that it finds before those of the image.
        apt: lines of apt's configuration during the set-up.
        rewrite: changes of the commands that matched.
        append: lines after the set-up's own.
        alone: no other set-up with such a rule runs at the same time on this store.
        pretended_owners: changes of owner and of user id are said to have succeeded, and are not made.
        skip: do not run it.
    """

    environment: dict[str, str] = {}
    set_up_environment: dict[str, str] = {}
    shims: dict[str, str] = {}
    overriding_shims: dict[str, str] = {}
    apt: tuple[str, ...] = ()
    rewrite: tuple[Rewrite, ...] = ()
    append: str = ""
    alone: bool = False
    pretended_owners: bool = False
    skip: Skip | None = None


class Rule(_Strict):
    """A compat rule.

    Attributes:
        id: its name, for ever.
        version: raised with every change of what it matches or does.
        kind: the kind of trouble it is about.
        symptom: what happens without it.
        repair: what it does, in words.
        test: the test that holds it (``path::name``).
    """

    id: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    version: int = Field(ge=1)
    kind: str = Field(min_length=1)
    symptom: str = Field(min_length=1)
    repair: str = Field(min_length=1)
    match: Match
    effect: Effect
    test: str = Field(pattern=r"^tests/[\w/]+\.py::test_\w+$")

    @property
    def name(self) -> str:
        """``id@version``: what records say."""
        return f"{self.id}@{self.version}"

    @property
    def digest(self) -> str:
        """Names what it matches and does."""
        return digest_of(
            [self.id, self.version, self.match.model_dump(mode="json"), self.effect.model_dump(mode="json")]
        )


def load_rules(folder: Path = RULES) -> tuple[Rule, ...]:
    """The rules of ``folder`` (``*.yaml``, each a list), in the order of file names and of the lists.

    Raises:
        InputError: a file is no list of rules, or an id comes twice; names the file and the rule.
    """
    rules: list[Rule] = []
    for path in sorted(folder.glob("*.yaml")):
        values = read_yaml(path)
        if not isinstance(values, list):
            raise InputError(f"{path} is no list of rules", "See launch/compat for examples")
        rules += [_rule(value, number, path) for number, value in enumerate(values, 1)]
    names = [rule.id for rule in rules]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{folder}: more than one rule is called {', '.join(twice)}", "Give each an id of its own")
    return tuple(rules)


def rules_digest(rules: Iterable[Rule]) -> str:
    """Names a set of rules; a pin of what is judged with them."""
    return digest_of(sorted(rule.digest for rule in rules))


def _rule(value: object, number: int, path: Path) -> Rule:
    try:
        return Rule.model_validate(value)
    except ValidationError as error:
        name = value.get("id") if isinstance(value, dict) else None
        first = error.errors()[0]
        setting = ".".join(str(part) for part in first["loc"])
        where = at(path, (number - 1, *first["loc"]))
        raise InputError(f"{where}: rule {name or number}: {setting}: {first['msg']}", "Mend it there") from error
