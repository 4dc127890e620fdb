import pytest

from leonardo.assets.compat import lacking, load_rules
from leonardo.assets.compat.adapt import adapt
from leonardo.errors import FailureClass, InputError
from leonardo.tasks.definition import parse_definition
from leonardo.tasks.desk.planted import PACKAGE_SETS, REPAIRS, corpus

PLANTED = {
    FailureClass.MIRROR: 2,
    FailureClass.SPACE: 1,
    FailureClass.KERNEL_FEATURE: 1,
    FailureClass.RUNTIME: 1,
    FailureClass.SET_UP: 1,
    FailureClass.SERVICE: 2,
    FailureClass.PRIVILEGE: 2,
    FailureClass.PORT: 1,
    FailureClass.NETWORK: 1,
    FailureClass.VERIFIER_BROKEN: 2,
    FailureClass.VERIFIER_ALREADY_PASSES: 1,
    FailureClass.REFERENCE_FAILS: 1,
    FailureClass.CONTRADICTS: 1,
    FailureClass.NEEDS_NETWORK: 1,
    FailureClass.LEAKS: 1,
    FailureClass.AGENT: 1,
}


def test_the_corpus_holds_what_it_says() -> None:
    tasks = corpus(1)
    assert len(tasks) == len({entry.task.id for entry in tasks}) == 300
    faults = [entry.fault for entry in tasks if entry.fault]
    assert {fault: faults.count(fault) for fault in faults} == PLANTED
    assert len(faults) == 20
    assert sum("apt-get install" in entry.task.definition for entry in tasks) == len(PACKAGE_SETS) == 12
    assert not any("apt-get" in entry.task.definition for entry in corpus(1, packages=False))


def test_the_same_seed_gives_the_same_corpus() -> None:
    first, again, other = ([entry.task.digest for entry in corpus(seed, 60)] for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_what_a_rule_is_to_repair_is_what_it_matches() -> None:
    rules = {rule.id: rule for rule in load_rules()}
    wanted = [(entry.rule, entry.task) for entry in corpus(1) if entry.rule]
    assert {rule for rule, _ in wanted} == {rule for rule, _ in REPAIRS}
    for rule, task in wanted:
        post = parse_definition(task.definition).post
        assert adapt(post, "", [rules[rule]], lacking(one_id=False, substituted=True)).applied


def test_a_corpus_too_small_is_one_line() -> None:
    with pytest.raises(InputError, match="corpus of 20 tasks is too small"):
        corpus(1, 20)
