"""Where control groups are made, and that none is left."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from leonardo.sandbox import cgroups
from leonardo.sandbox.driver import LayerStack
from leonardo.sandbox.namespaces import NamespacesDriver
from tests.sandbox.conftest import SMALL

VERSION_1 = """\
25 24 0:22 / {top}/cpu rw shared:9 - cgroup cgroup rw,cpu
26 24 0:23 /machine {top}/memory rw shared:9 - cgroup cgroup rw,memory
27 24 0:24 / {top}/pids rw shared:9 - cgroup cgroup rw,pids
"""
VERSION_2 = "30 24 0:26 / {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def _found(memberships: str, mounts: str) -> dict[str, set[str]]:
    found = cgroups._hierarchies(memberships, mounts)
    return {str(hierarchy.folder): set(hierarchy.bounds) for hierarchy in found}


def test_version_1_is_found_where_it_is_mounted(tmp_path: Path) -> None:
    memberships = "9:name=systemd:/x\n8:pids:/\n5:cpu:/\n4:memory:/machine/one\n0::/\n"
    assert _found(memberships, VERSION_1.format(top=tmp_path)) == {
        f"{tmp_path}/memory/one": {"memory"},
        f"{tmp_path}/pids": {"processes"},
    }


def test_what_is_not_mounted_is_not_used(tmp_path: Path) -> None:
    assert _found("4:memory:/elsewhere\n", VERSION_1.format(top=tmp_path)) == {}
    assert _found("4:memory:/machinery\n", VERSION_1.format(top=tmp_path)) == {}
    assert _found("0::/\n", "") == {}


def test_version_2_is_used_where_children_have_controllers(tmp_path: Path) -> None:
    own = tmp_path / "slice" / "scope"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text("\n")
    (tmp_path / "slice" / "cgroup.subtree_control").write_text("cpu memory pids\n")
    mounts = VERSION_2.format(top=tmp_path)
    assert _found("0::/slice/scope\n", mounts) == {f"{tmp_path}/slice": {"memory", "processes"}}
    (tmp_path / "slice" / "cgroup.subtree_control").write_text("cpu\n")
    assert _found("0::/slice/scope\n", mounts) == {}


@pytest.fixture
def groups() -> cgroups.Groups:
    found = cgroups.find()
    if found is None:
        pytest.skip("no control group can be made here")
    return found


def _left() -> set[Path]:
    # not by rglob, which fails where another process removes a group meanwhile
    mine = f"{cgroups.PREFIX}{os.getpid()}-"
    return {Path(top, name) for top, names, _ in os.walk("/sys/fs/cgroup") for name in names if name.startswith(mine)}


def test_a_group_bounds_counts_and_goes(groups: cgroups.Groups) -> None:
    group = groups.make(memory=64 << 20, processes=5)
    assert all(folder.exists() for folder in group._folders)
    join = "import os, sys; [os.write(int(word), b'0') for word in sys.argv[1:]]; os.execvp('sh', ['sh', '-c', "
    script = "for i in 1 2 3 4 5 6 7; do sleep 1 & done; wait"
    command = ["python3", "-c", f"{join}{script!r}])", *map(str, group.descriptors)]
    try:
        done = subprocess.run(command, pass_fds=group.descriptors, capture_output=True, text=True, check=False)
        if "processes" in groups.bounded:
            assert "fork" in done.stderr
            assert "processes" in group.new_events()
        assert group.new_events() == set()
    finally:
        group.close_descriptors()
        # the sleepers, whose shell is gone, are still in it
        deadline = time.monotonic() + 5
        while any(folder.exists() for folder in group._folders) and time.monotonic() < deadline:
            group.remove()
            time.sleep(0.05)
    assert not any(folder.exists() for folder in group._folders)
    group.remove()


def test_sandboxes_leave_no_group(driver: NamespacesDriver, stack: LayerStack) -> None:
    before = _left()
    backend = driver.backend(stack, limits=SMALL)
    backend.start()
    if driver.groups:
        assert _left() > before
    backend.close()
    assert _left() == before


def test_the_first_command_is_in_the_groups_already(driver: NamespacesDriver, stack: LayerStack) -> None:
    """Joining takes the kernel longer than all else of a start, and goes on while the sandbox is prepared."""
    if driver.groups is None:
        pytest.skip("no control group can be made here")
    backend = driver.backend(stack, limits=SMALL)
    for _ in range(3):
        backend.start()
        joined = backend.run_command("cat /proc/self/cgroup").stdout
        assert joined.count(cgroups.PREFIX) == len(driver.groups._hierarchies), joined
    backend.close()
