"""The stage behind ``leonardo compat``: the rules there are, and which of them apply to a row and why."""

from pathlib import Path

from leonardo.assets.compat import load_rules
from leonardo.assets.progress import say
from leonardo.assets.store import AssetStore
from leonardo.sandbox.drivers import open_driver
from leonardo.site import load_site
from leonardo.tables import Table, open_console
from leonardo.tasks.rows import read_tasks


def list_command() -> int:
    """Print every rule: what it is about, what it does, where it applies."""
    table = Table("rule", "kind", "symptom", "repair", "only where the site lacks")
    for rule in load_rules():
        table.add_row(rule.name, rule.kind, rule.symptom, rule.repair, ", ".join(rule.match.lacks) or "-")
    open_console().print(table)
    return 0


def explain_command(task_id: str, rows: Path, site: str | Path = "desk", driver_name: str = "auto") -> int:
    """Print which rules apply to a row here and why, and what its set-up becomes."""
    console = open_console()
    settings = load_site(site)
    (task,) = read_tasks(rows, ids=[task_id])
    with open_driver(driver_name) as driver:
        plan = AssetStore(settings.cache / "assets", driver, settings).adapted(task)
    adaptation = plan.adaptation
    if not adaptation.applied:
        say(console, f"{task_id}: no rule applies")
        return 0
    for applied in adaptation.applied:
        say(console, f"{applied.rule.name}: {applied.why}")
        say(console, f"    {applied.rule.repair}; held by {applied.rule.test}")
    if adaptation.skip:
        say(console, f"not run: {adaptation.skip.failure}: {adaptation.skip.reason}")
    return 0
