"""One user id only: the common case on clusters, where users have no subordinate ids."""

from leonardo.errors import FailureClass
from leonardo.sandbox.driver import Driver
from tests.assets.compat.conftest import Repair

SCRIPT = """\
touch /mine; chown 33:33 /mine; chgrp 33 /mine; chown -h root:root /mine
perl -e 'syscall(116, 0, 0) == 0 && syscall(106, 33) == 0 && syscall(105, 33) == 0 or die "setuid: $!"; print "as 33"'
"""


def test_owners_with_one_id(repair: Repair, one_id_driver: Driver) -> None:
    without, repaired = repair("owners-with-one-id", SCRIPT, on=one_id_driver)
    assert without.failure is FailureClass.PRIVILEGE
    assert "Invalid argument" in without.reason
    assert repaired.failure is None, repaired.reason
    assert repaired.entries == 2


def test_owners_with_many_ids_are_real(repair: Repair, driver: Driver) -> None:
    without, same = repair("owners-with-one-id", SCRIPT)
    if driver.one_id:
        assert without.failure is FailureClass.PRIVILEGE
    else:
        assert (without.failure, same.rules) == (None, ())
        assert without.delta == same.delta


def test_access_lists_with_one_id(repair: Repair, one_id_driver: Driver) -> None:
    script = "setfacl -m u:33:r /etc/base-marker\n"
    without, skipped = repair("access-lists-with-one-id", script, on=one_id_driver)
    assert without.failure is not None
    assert skipped.failure is FailureClass.PRIVILEGE
    assert "one user id only" in skipped.reason
