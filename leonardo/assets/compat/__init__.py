"""Compat rules: narrow, versioned, data (``launch/compat``), each held by a test of its own."""

from leonardo.assets.compat.adapt import NONE, Adaptation, Applied, adapt
from leonardo.assets.compat.lend import INSIDE, lend
from leonardo.assets.compat.rules import Facility, Rule, lacking, load_rules, rules_digest

__all__ = [
    "INSIDE",
    "NONE",
    "Adaptation",
    "Applied",
    "Facility",
    "Rule",
    "adapt",
    "lacking",
    "lend",
    "load_rules",
    "rules_digest",
]
