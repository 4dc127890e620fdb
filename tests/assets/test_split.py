import pytest

from leonardo.assets.split import PackageStep, split

ROW = """
    export DEBIAN_FRONTEND=noninteractive
    apt-get update && apt-get install -y jq python3-pip python3
    pip3 install pytest networkx

    useradd -m user
"""


def test_packages_and_the_rest() -> None:
    parts = split(ROW)
    assert [step.script for step in parts.steps] == [
        "apt-get update\napt-get install -y jq python3 python3-pip\n",
        "pip3 install networkx pytest\n",
    ]
    assert [piece.names for piece in parts.steps[0].parts()] == [("python3", "python3-pip"), ("jq",)]
    assert (
        parts.rest == "\n    export DEBIAN_FRONTEND=noninteractive\n\n\n\n    useradd -m user\n"
    )  # lines keep numbers


@pytest.mark.parametrize(
    "line",
    [
        "apt-get install -y --no-install-recommends b a",
        "apt-get -qq update && apt-get -y install a \\\n  b --no-install-recommends && rm -rf /var/lib/apt/lists/*",
        "DEBIAN_FRONTEND=noninteractive apt install -yq --no-install-recommends a b > /dev/null; apt-get clean",
        "apt-get install -y --no-install-recommends a\napt-get install -y --no-install-recommends b a",
    ],
)
def test_one_normal_form(line: str) -> None:
    parts = split(line + "\ntouch /x\n")
    assert parts.steps == (PackageStep("apt", ("a", "b"), ("--no-install-recommends",)),)
    assert parts.rest.split() == ["touch", "/x"]


@pytest.mark.parametrize(
    "line",
    [
        "apt-get install -y $PACKAGES",
        "apt-get install -y a || true",
        "apt-get install -y ./local.deb",
        "apt-get install -y a b- ",
        "apt-get install -y a b+",
        "apt-get remove -y a",
        "apt-get install -y a && touch /x",
        "apt-get install -y 'a",
        "apt-get install -y a=1.0",
        "pip3 install -r requirements.txt",
        "pip3 install --upgrade pip",
        "pip3 install git+https://a.example/x",
        "pip3 install pytest > /var/log/pip.log",
        "if true; then apt-get install -y a; fi",
        "export PIP_INDEX_URL=x; pip3 install pytest",
        "(apt-get install -y a)",
        "apt-get install -y $(cat list)",
        "pip3 install `cat list`",
    ],
)
def test_what_is_not_understood_whole_stays_with_the_rest(line: str) -> None:
    assert split(f"{line}\npip3 install later\n").steps == ()
    assert split(f"{line}\npip3 install later\n").rest == f"{line}\npip3 install later\n"


def test_nothing_is_moved_across_anything() -> None:
    parts = split("apt-get install -y a\ntouch /x\npip3 install pytest\n")
    assert [step.names for step in parts.steps] == [("a",)]
    assert parts.rest == "\ntouch /x\npip3 install pytest\n"


def test_names_that_end_in_plus() -> None:
    assert split("apt-get install -y g++ libstdc++6\n").steps[0].names == ("g++", "libstdc++6")


def test_a_script_of_packages_has_no_rest() -> None:
    assert split("set -e\napt-get update\napt-get install -y a\n# done\n").rest == ""


def test_a_rest_that_uses_apt_gets_its_lists() -> None:
    assert split("apt-get install -y a\napt-get install -y b || true\n").rest.startswith("apt-get update;\n")


def test_pip_by_its_other_names_and_quoted_bounds() -> None:
    (step,) = split("python3 -m pip install -q --break-system-packages 'numpy<2' scipy==1.11.4\n").steps
    assert step.script == "python3 -m pip install --break-system-packages 'numpy<2' scipy==1.11.4\n"


def test_more_layers_than_a_mount_takes_are_one() -> None:
    script = "".join(f"apt-get install -y a{number}\npip3 install b{number}\n" for number in range(4))
    assert split(script).steps == ()
    assert len(split(script.partition("pip3 install b2")[0] + "touch /x\n").steps) == 5


def test_another_interpreter_keeps_it_in_one() -> None:
    assert split("#!/usr/bin/python3\n" + ROW).steps == ()
