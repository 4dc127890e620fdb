"""Rules put to a set-up: which apply, why, and what the set-up becomes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from leonardo.assets.compat.rules import Facility, Rule, Skip
from leonardo.assets.compat.script import Command, commands_of

_WRAPPED = r"(?:(?:sudo(?:\s+-\S+)*|exec|nohup|env)\s+)*(?:/\S*/)?"
NAMES_SHOWN = 3


@dataclass(frozen=True)
class Applied:
    """A rule that applies, and why, in words."""

    rule: Rule
    why: str


@dataclass(frozen=True)
class Adaptation:
    """What rules make of a set-up.

    Attributes:
        applied: the rules, in their order.
        script: the set-up's script as it is run.
        environment, set_up_environment: variables to add (see :class:`leonardo.assets.compat.rules.Effect`).
        shims, overriding_shims: programs by name.
        apt: lines of apt's configuration.
        alone, pretended_owners: as in the rules.
        skip: why it is not run, ``None`` where it is.
    """

    script: str
    applied: tuple[Applied, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    set_up_environment: Mapping[str, str] = field(default_factory=dict)
    shims: Mapping[str, str] = field(default_factory=dict)
    overriding_shims: Mapping[str, str] = field(default_factory=dict)
    apt: tuple[str, ...] = ()
    alone: bool = False
    pretended_owners: bool = False
    skip: Skip | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """``id@version`` of each rule that applied: what manifest and records say."""
        return tuple(applied.rule.name for applied in self.applied)

    @property
    def digests(self) -> list[str]:
        """Part of the set-up's key."""
        return [applied.rule.digest for applied in self.applied]


NONE = Adaptation("")
"""Of what no rule was put to."""


def adapt(script: str, verifier: str, rules: Iterable[Rule], lacking: frozenset[Facility]) -> Adaptation:
    """Put ``rules`` to a set-up.

    Args:
        script: the set-up's script.
        verifier: text of the verifier's files.
        rules: in the order in which they are to be applied.
        lacking: what the site lacks.
    """
    commands = commands_of(script)
    applied: list[Applied] = []
    changes: dict[Command, str] = {}
    appended = ""
    for rule in rules:
        found = _matches(rule, commands, verifier, lacking)
        if found is None:
            continue
        hits, why = found
        applied.append(Applied(rule, why))
        for rewrite in rule.effect.rewrite:
            for command in hits:
                changes[command] = re.sub(rewrite.pattern, rewrite.by, changes.get(command, command.text))
        if rule.effect.append:
            appended += rule.effect.append.rstrip("\n") + "\n"
    effects = [entry.rule.effect for entry in applied]
    return Adaptation(
        script=_changed(script, changes, appended),
        applied=tuple(applied),
        environment=_merged(effect.environment for effect in effects),
        set_up_environment=_merged(effect.set_up_environment for effect in effects),
        shims=_merged(effect.shims for effect in effects),
        overriding_shims=_merged(effect.overriding_shims for effect in effects),
        apt=tuple(line for effect in effects for line in effect.apt),
        alone=any(effect.alone for effect in effects),
        pretended_owners=any(effect.pretended_owners for effect in effects),
        skip=next((effect.skip for effect in effects if effect.skip), None),
    )


def _matches(
    rule: Rule, commands: Sequence[Command], verifier: str, lacking: frozenset[Facility]
) -> tuple[list[Command], str] | None:
    """The commands that a rule is about and why it applies, ``None`` where it does not."""
    match = rule.match
    if not lacking.issuperset(match.lacks):
        return None
    if match.unless_command and any(_begins(command, match.unless_command) for command in commands):
        return None
    reasons = [f"the site lacks {', '.join(match.lacks)}"] if match.lacks else []
    hits: list[Command] = []
    if match.command:
        hits = [
            command for command in commands if (command.fatal or not match.fatal) and _begins(command, match.command)
        ]
        if not hits:
            return None
        shown = [f"line {hit.line}: {' '.join(hit.text.split())[:80]}" for hit in hits[:NAMES_SHOWN]]
        more = f" and {len(hits) - NAMES_SHOWN} more" if len(hits) > NAMES_SHOWN else ""
        reasons.append("; ".join(shown) + more)
    if match.verifier:
        found = re.search(match.verifier, verifier, re.MULTILINE)
        if found is None:
            return None
        reasons.append(f"the verifier has {found.group().strip()[:80]!r}")
    return hits, "; ".join(reasons) or "every set-up"


def _begins(command: Command, patterns: Iterable[str]) -> bool:
    text = re.sub(r"\\\n\s*", " ", command.text)
    return any(re.match(f"{_WRAPPED}(?:{pattern})", text) for pattern in patterns)


def _changed(script: str, changes: Mapping[Command, str], appended: str) -> str:
    for command in sorted(changes, key=lambda entry: entry.start, reverse=True):
        script = script[: command.start] + changes[command] + script[command.end :]
    return script.rstrip("\n") + "\n" + appended if appended else script


def _merged(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {name: value for part in parts for name, value in part.items()}
