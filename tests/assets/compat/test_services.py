import time
from collections.abc import Callable

import pytest

from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass
from leonardo.sandbox.driver import Driver
from tests.assets.compat.conftest import MakeTask, Repair, only

INIT_SCRIPT = """\
mkdir -p /etc/init.d
cat << 'EOF' > /etc/init.d/demo
#!/bin/sh
case "$1" in
  start) echo "started $1"; touch /run-demo ;;
  stop) rm -f /run-demo ;;
  status) [ -e /run-demo ] ;;
esac
EOF
chmod 755 /etc/init.d/demo
"""
SERVICES = "systemctl daemon-reload; systemctl is-active demo || true; systemctl enable --now demo.service\n"
SERVICES += "systemctl is-active --quiet demo; systemctl stop demo; systemctl is-active demo && exit 9; true\n"


def test_systemctl_starts_a_service_by_its_script(repair: Repair, log_of) -> None:
    without, repaired = repair("systemctl-without-init", INIT_SCRIPT + SERVICES)
    assert without.failure is FailureClass.SERVICE
    assert "systemctl: not found" in without.reason
    assert repaired.failure is None, repaired.reason
    assert log_of(repaired).split() == ["inactive", "started", "start", "active", "inactive"]


def test_a_service_without_a_script_is_a_failed_service(repair: Repair) -> None:
    _, repaired = repair("systemctl-without-init", "systemctl start nothing")
    assert repaired.failure is FailureClass.SERVICE
    assert "nothing has no init script" in repaired.reason


LISTEN = """\
mkdir -p /etc/init.d
cat << 'EOF' > /etc/init.d/demo
#!/bin/sh
perl -e '
  socket(S, 2, 1, 0); setsockopt(S, 1, 2, pack("i", 1));
  bind(S, pack("S n N x8", 2, PORT, 0x7f000001)) or die "bind: $!\\n";
  listen(S, 1); sleep 1
'
EOF
sed -i 's/PORT/'$PORT'/' /etc/init.d/demo; chmod 755 /etc/init.d/demo
/etc/init.d/demo start
"""


@pytest.mark.parametrize("alone", [False, True])
def test_set_ups_with_services_run_one_at_a_time(
    alone: bool, driver: Driver, make_store: Callable[..., AssetStore], make_task: MakeTask, free_port: int
) -> None:
    """Without the rule two that run at the same time get in each other's way; with it they never do."""
    tasks = [make_task(f"PORT={free_port}\n{LISTEN}echo {name}\n", name) for name in ("a", "b")]
    store = make_store(driver, only("services-share-ports") if alone else ())
    began = time.monotonic()
    failures = [entry.failure for entry in store.build(tasks, jobs=2)]
    assert failures.count(FailureClass.PORT) == (0 if alone else 1)
    assert failures.count(None) == (2 if alone else 1)
    assert (time.monotonic() - began > 2) or not alone


@pytest.fixture
def free_port() -> int:
    """A port that nobody has."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
