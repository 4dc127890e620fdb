"""A set-up with and without the rules, in real sandboxes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leonardo.assets.catalogue import Catalogue
from leonardo.assets.compat import Rule, load_rules
from leonardo.assets.manifest import SetUpRecord
from leonardo.assets.store import AssetStore
from leonardo.errors import InfrastructureError
from leonardo.sandbox.driver import Driver
from leonardo.sandbox.drivers import ONE_ID
from leonardo.site import Site
from leonardo.tasks.task import Task

MakeTask = Callable[..., Task]
Repair = Callable[..., tuple[SetUpRecord, SetUpRecord]]

RULES = {rule.id: rule for rule in load_rules()}


def only(name: str) -> tuple[Rule, ...]:
    """The one rule of that id."""
    return (RULES[name],)


@pytest.fixture
def make_store(site: Site) -> Callable[..., AssetStore]:
    """A store of a driver's that uses these rules; all of a driver's share a folder, so that keys must differ."""

    def make(driver: Driver, rules: tuple[Rule, ...]) -> AssetStore:
        return AssetStore(site.cache / "assets" / driver.name, driver, site, timeout=20, rules=rules)

    return make


@pytest.fixture
def repair(driver: Driver, make_store: Callable[..., AssetStore], make_task: MakeTask) -> Repair:
    """How a set-up ends without any rule, and with one."""

    def run(name: str, post: str, on: Driver = driver, **fields: object) -> tuple[SetUpRecord, SetUpRecord]:
        task = make_task(post, **fields)
        without, with_rule = (make_store(on, rules).build([task])[0].set_up for rules in ((), only(name)))
        assert without.rules == ()
        assert without.key != with_rule.key or with_rule.rules == ()
        return without, with_rule

    return run


@pytest.fixture(scope="session")
def one_id_driver() -> Iterator[Driver]:
    """A driver whose sandboxes have one user id, which works wherever user namespaces do."""
    try:
        opened = ONE_ID.opened()
    except InfrastructureError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture
def log_of(site: Site) -> Callable[[SetUpRecord], str]:
    """What a set-up wrote."""

    def log(record: SetUpRecord) -> str:
        return "".join(Catalogue(folder).log(record.log) for folder in Path(site.cache).glob("assets/*/catalogue"))

    return log
