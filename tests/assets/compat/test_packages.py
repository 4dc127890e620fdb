"""apt and pip stand-ins say what they are run with; that the real ones do what they are told is shown by the rows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leonardo.assets.compat import adapt, lacking
from leonardo.errors import FailureClass
from tests.assets.compat.conftest import Repair, only

SUBSTITUTED = lacking(one_id=False, substituted=True)


def stand_in(name: str, script: str) -> str:
    """Lines of a set-up that make a program."""
    return f"cat << 'EOF' > /usr/bin/{name}\n#!/bin/sh\n{script}\nEOF\nchmod 755 /usr/bin/{name}\n"


def test_apt_downloads_as_root(repair: Repair, log_of) -> None:
    apt = stand_in("apt-get", 'grep -rh Sandbox "$APT_CONFIG"; grep -h include "$APT_CONFIG"; true')
    without, repaired = repair("apt-as-root", apt + "apt-get update\n")
    assert "Sandbox" not in log_of(without)
    lines = log_of(repaired).splitlines()
    assert lines == ['APT::Sandbox::User "root";', '#include "/run/leonardo-set-up/apt.conf";']


@pytest.mark.skipif(not shutil.which("apt-config"), reason="this machine has no apt")
def test_apt_reads_both_files(tmp_path: Path) -> None:
    (tmp_path / "lent.conf").write_text('Dir::Cache "/lent";\n')
    (tmp_path / "apt.conf").write_text(f'#include "{tmp_path}/lent.conf";\nAPT::Sandbox::User "root";\n')
    environment = os.environ | {"APT_CONFIG": str(tmp_path / "apt.conf")}
    shown = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, env=environment, check=True).stdout
    assert 'Dir::Cache "/lent"' in shown
    assert 'APT::Sandbox::User "root"' in shown


def test_packages_ask_nothing(repair: Repair) -> None:
    script = stand_in("dpkg", '[ "$DEBIAN_FRONTEND" = noninteractive ]') + "dpkg --configure -a\n"
    without, repaired = repair("debconf-without-terminal", script)
    assert without.failure is FailureClass.SET_UP
    assert repaired.failure is None


GUARD = """\
[ "$PIP_BREAK_SYSTEM_PACKAGES" = 1 ] && exit 0
echo 'error: externally-managed-environment' >&2
exit 1
"""


def test_pip_may_install_beside_the_system(repair: Repair) -> None:
    without, repaired = repair("pip-system-guard", stand_in("pip3", GUARD) + "pip3 install pytest\n")
    assert without.failure is FailureClass.SET_UP
    assert repaired.failure is None
    adaptation = adapt("pip3 install pytest", "", only("pip-system-guard"), SUBSTITUTED)
    assert adaptation.environment == {"PIP_BREAK_SYSTEM_PACKAGES": "1"}


def test_pip_gives_up_at_once_without_a_network(tmp_path: Path) -> None:
    adaptation = adapt("pip3 install pytest", "", only("pip-without-network"), SUBSTITUTED)
    assert "PIP_RETRIES" not in adaptation.set_up_environment  # there a mirror is asked again
    command = [sys.executable, "-m", "pip", "download", "-q", "-d", tmp_path, "--index-url", "http://127.0.0.1:9/", "x"]
    bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}

    def complaints(environment: dict[str, str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=60)
        if "No module named pip" in done.stderr:
            pytest.skip("this environment has no pip")
        assert done.returncode != 0
        return done.stderr

    assert "Retrying" not in complaints(bare | adaptation.environment)
    assert "Retrying" in complaints(bare | {"PIP_RETRIES": "1"})


def test_a_verifier_that_needs_requests_gets_it(repair: Repair, log_of) -> None:
    programs = stand_in("pip3", 'echo "pip3 $*"') + stand_in("python3", 'echo "python3 $*"')
    tests = {"test.sh": b"true", "test_final_state.py": b"import os\nimport requests\n"}
    without, repaired = repair("requests-for-verifier", programs + "pip3 install pytest\n", tests=tests)
    assert log_of(without).splitlines() == ["pip3 install pytest"]
    assert log_of(repaired).splitlines() == ["pip3 install pytest", "python3 -m pip install requests"]


@pytest.mark.parametrize(
    ("script", "verifier"),
    [
        ("pip3 install pytest requests", "import requests"),
        ("apt-get install -y python3-requests; pip3 install pytest", "import requests"),
        ("pip3 install pytest", "import requests_mock"),
        ("pip3 install pytest", "# import requests"),
        ("apt-get install -y python3", "import requests"),  # nothing to install it by
    ],
)
def test_requests_only_where_they_are_missing(script: str, verifier: str) -> None:
    assert adapt(script, verifier, only("requests-for-verifier"), SUBSTITUTED).names == ()
