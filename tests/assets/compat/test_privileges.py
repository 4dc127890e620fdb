import pytest

from leonardo.errors import FailureClass
from tests.assets.compat.conftest import Repair


def test_sudo_where_there_is_none(repair: Repair, log_of) -> None:
    su = "printf '#!/bin/sh\\necho su $*\\nexec $2 -c \"$4\"\\n' > /usr/bin/su; chmod 755 /usr/bin/su\n"
    script = "sudo -n A=1 sh -c 'echo \"$A it'\"'\"'s\"' && sudo -u www-data id -u\n"
    without, repaired = repair("sudo-as-root", su + "sudo touch /by-sudo\n" + script)
    assert without.failure is FailureClass.SET_UP
    assert "sudo: not found" in without.reason
    assert repaired.failure is None, repaired.reason
    assert log_of(repaired).splitlines() == ["1 it's", "su -s /bin/sh -c exec 'id' '-u' www-data", "0"]
    assert repaired.rules == ("sudo-as-root@1",)
    assert repaired.entries == 5  # the root, /usr, /usr/bin, su and what it made: nothing of the shim


def test_the_image_s_own_sudo_goes_first(repair: Repair, log_of) -> None:
    own = "printf '#!/bin/sh\\necho own\\n' > /usr/bin/sudo; chmod 755 /usr/bin/sudo\n"
    without, repaired = repair("sudo-as-root", own + "sudo true\n")
    assert log_of(without) == log_of(repaired) == "own\n"


@pytest.mark.parametrize(
    ("rule", "script"),
    [
        ("mounts-refused", "mount -t tmpfs none /mnt\n"),
        ("kernel-settings-refused", "echo 1 > /proc/sys/vm/swappiness\n"),
        ("device-nodes-refused", "mknod /disk b 7 0\n"),
    ],
)
def test_what_needs_privilege_is_not_run(repair: Repair, rule: str, script: str) -> None:
    without, skipped = repair(rule, "mkdir -p /mnt\n" + script)
    assert without.failure is not None
    assert without.log
    assert skipped.failure is FailureClass.PRIVILEGE
    assert "needs privilege" in skipped.reason
    assert not skipped.log  # it was not run
    assert skipped.rules == (f"{rule}@1",)


def test_a_limit_that_may_not_be_raised(repair: Repair, log_of) -> None:
    without, repaired = repair("limits-beyond-the-sandbox", "ulimit -n 1048576\nulimit -n 64; ulimit -n\n")
    assert without.failure is FailureClass.PRIVILEGE
    assert repaired.failure is None, repaired.reason
    assert log_of(repaired).splitlines()[-1] == "64"  # one that may be set is set
