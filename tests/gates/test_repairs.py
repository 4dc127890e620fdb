from dataclasses import replace

from leonardo.assets.compat import load_rules
from leonardo.errors import FailureClass
from leonardo.gates.diagnosis import Diagnosis
from leonardo.gates.repairs import repairs_page, symptom

SUDO = Diagnosis("k1", "t1", "", True, True, None, "", rules=("sudo-as-root@1",))
SUDO_BEFORE = Diagnosis(
    "k2", "t1", "", False, False, FailureClass.SET_UP, "exit code 127: sudo: not found", with_rules=False
)
BROKEN = Diagnosis("k3", "t2", "", True, False, FailureClass.VERIFIER_BROKEN, "cannot run: a | b")


def rows_of(page: str, word: str) -> list[str]:
    return [line for line in page.splitlines() if word in line]


def test_a_repair_has_its_before_and_after() -> None:
    (row,) = rows_of(repairs_page([SUDO_BEFORE, SUDO], load_rules()), "| `sudo-as-root@1` |")
    assert "| set-up 1 | 1 |" in row
    assert row.endswith("| 0 of 1 pass | 1 of 1 pass |")


def test_a_repair_nobody_ran_without() -> None:
    (row,) = rows_of(repairs_page([SUDO], load_rules()), "| `sudo-as-root@1` |")
    assert row.endswith("| not run | 1 of 1 pass |")


def test_a_rule_without_which_every_row_passes_is_said() -> None:
    passing = replace(SUDO_BEFORE, passed=True, failure=None, reason="")
    said = "Every row passed without them here, too: `sudo-as-root@1`"
    assert rows_of(repairs_page([passing, SUDO], load_rules()), said)
    assert not rows_of(repairs_page([SUDO_BEFORE, SUDO], load_rules()), said)
    assert not rows_of(repairs_page([passing, SUDO, replace(SUDO, task_id="t2")], load_rules()), said)  # not run


def test_the_newest_record_of_a_row_counts() -> None:
    newer = replace(SUDO, passed=False, failure=FailureClass.SET_UP)
    (row,) = rows_of(repairs_page([SUDO, newer], load_rules()), "| `sudo-as-root@1` |")
    assert row.endswith("0 of 1 pass |")


def test_what_is_not_repaired_is_listed_by_symptom() -> None:
    other = replace(BROKEN, task_id="t3", key="k4")
    ours = Diagnosis("k5", "t4", "", True, False, None, "KeyError: 'x'")
    page = repairs_page([BROKEN, other, ours, SUDO_BEFORE], load_rules())
    (row,) = rows_of(page, "cannot run")
    assert row.startswith("| cannot run: a \\| b | verifier-broken | 2 | t2, t3 |")
    assert "unclassified" in rows_of(page, "KeyError")[0]
    assert not rows_of(page, "sudo: not found | set-up")  # that was without rules


def test_rows_that_differ_in_names_only_share_a_symptom() -> None:
    first = symptom("exit code 1: cp: cannot stat '/data/attic/apple.txt': No such file")
    assert first == symptom("exit code 2: cp: cannot stat '/data/barn/bear.txt': No such file")
    assert symptom("Python 3.11 in /usr/lib") == symptom("Python 3.12 in /usr/lib")
