from pathlib import Path

import pytest

from leonardo.assets.fullimage import builds_below, full_definition
from leonardo.assets.packages import INSIDE
from leonardo.errors import InfrastructureError

DEFINITION = """\
# a comment
Bootstrap: docker
From: ubuntu:22.04

%environment
    export MINE='a b'

%post -c /bin/bash
    cat << 'EOF' > /a
    From: here

Bootstrapped text
EOF
"""
SECTIONS = DEFINITION[DEFINITION.index("%environment") :]


def test_only_the_header_is_another() -> None:
    made = full_definition(DEFINITION, Path("/store/base"), {})
    assert made.startswith("Bootstrap: localimage\nFrom: /store/base\n\n%environment\n    export MINE")
    assert SECTIONS in made
    assert "docker" not in made


def test_the_bases_variables_come_first() -> None:
    made = full_definition(DEFINITION, Path("/store/base"), {"TEXT": "it's", "FLAG": "1"})
    assert made.index("export TEXT='it'\"'\"'s'\nexport FLAG=1\n") < made.index("export MINE")


def test_the_place_for_packages_is_made_after_all_else() -> None:
    without_end = DEFINITION.rstrip("\n")
    assert full_definition(without_end, Path("/b"), {}).endswith(f'%setup\nmkdir -p "${{APPTAINER_ROOTFS}}{INSIDE}"\n')


def test_a_header_alone_is_the_base() -> None:
    assert full_definition("Bootstrap: docker\nFrom: x\n", Path("/b"), {}).startswith(
        "Bootstrap: localimage\nFrom: /b\n"
    )


def test_what_a_killed_build_left_goes_first(tmp_path: Path) -> None:
    left = tmp_path / "images" / ".full-abc" / "root" / "closed"
    left.mkdir(parents=True)
    left.chmod(0)
    try:
        with builds_below(tmp_path / "images"):
            assert not (tmp_path / "images" / ".full-abc").exists()
            assert (tmp_path / "images" / "lock").exists()
    except InfrastructureError as error:
        pytest.skip(str(error))
