"""The locks of upstream's environment, what its script says where it cannot go on, and two packages installed by it."""

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from leonardo.files import sha256_file

PROJECT = Path(__file__).parents[1]
ENVIRONMENTS = PROJECT / "launch" / "environments"


def locked(variant: str) -> dict[str, str]:
    """Package -> its entry."""
    text = (ENVIRONMENTS / f"upstream-{variant}.txt").read_text()
    entries = re.split(r"^(?=[a-z0-9])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    return {entry.partition("==")[0].partition("[")[0]: entry for entry in entries if entry.strip()}


def wanted(name: str) -> set[str]:
    """Packages that a file of requirements names, with those of the files it includes."""
    names: set[str] = set()
    for line in (ENVIRONMENTS / name).read_text().splitlines():
        requirement = line.partition("#")[0].strip()
        if requirement.startswith("-r "):
            names |= wanted(requirement.removeprefix("-r "))
        elif requirement:
            names.add(re.split(r"[\[=<>;! ]", requirement)[0].lower())
    return names


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_every_package_has_one_version_and_hashes(variant: str) -> None:
    for name, entry in locked(variant).items():
        assert re.fullmatch(r"\S+==[^\s;]+ \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+", entry), name


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_lock_holds_what_is_asked_for_and_names_no_server(variant: str) -> None:
    assert wanted(f"upstream-{variant}.in") <= locked(variant).keys()
    assert "://" not in (ENVIRONMENTS / f"upstream-{variant}.txt").read_text()


def test_cpu_lock_leaves_out_what_torch_can_be_imported_without() -> None:
    left_out = {"triton", "nvidia-cusolver", "nvidia-cuda-nvrtc", "cuda-bindings"}
    assert left_out <= locked("cuda").keys()
    assert not left_out & locked("cpu").keys()


def run(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [str(PROJECT / "tools" / "upstream-env.sh"), *words]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)


def test_refusals_are_one_line_and_touch_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for words, variables, said in (
        (["install"], {"VARIANT": "tpu"}, "no variant tpu"),
        (["install"], {"VENV": str(tmp_path), "VARIANT": "cpu"}, "holds no cpu environment"),
        (["install"], {"VENV": str(tmp_path / "new"), "WHEELS": str(tmp_path / "none"), "VARIANT": "cpu"}, "no folder"),
        (["wheels"], {"WHEELS": "", "VARIANT": "cpu"}, "name the folder"),
        (["instal"], {"VARIANT": "cpu"}, "no command instal"),
    ):
        result = run(*words, **variables)
        assert result.returncode == 1
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_missing_package_is_said_in_a_few_lines(tmp_path: Path) -> None:
    """A folder of packages that lacks some: pip's last words, and which command it was; run again, it goes on."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for _ in range(2):
        result = run("install", VENV=str(tmp_path / "venv"), WHEELS=str(wheels), VARIANT="cpu")
        if "needs Python 3.12" in result.stderr:
            pytest.skip("no Python 3.12 here")
        assert result.returncode == 1
        assert "No matching distribution found" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("upstream-env: failed:")
        assert not (tmp_path / "venv" / ".ready").exists()


def _wheel(folder: Path, name: str, text: str) -> str:
    """A wheel of one module; returns its line of a lock."""
    path, about = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": text,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return f"{name}==1.0 \\\n    --hash=sha256:{sha256_file(path)}\n"


def test_installs_from_a_folder_without_a_network(tmp_path: Path) -> None:
    """A lock of two packages: installed from their wheels alone, by their hashes; another wheel of that name is not."""
    checkout, wheels = tmp_path / "checkout", tmp_path / "wheels"
    for folder in (checkout / "tools", checkout / "launch/environments", wheels):
        folder.mkdir(parents=True)
    shutil.copy(PROJECT / "tools/upstream-env.sh", checkout / "tools")
    (checkout / "leonardo").symlink_to(PROJECT / "leonardo")
    lock = _wheel(wheels, "first", "value = 1") + _wheel(wheels, "second", "value = 2")
    (checkout / "launch/environments/upstream-trial.txt").write_text(lock)
    sealed = ["unshare", "--net"] if os.getuid() == 0 else []
    if sealed and subprocess.run([*sealed, "true"]).returncode != 0:
        sealed = []
    command = [*sealed, str(checkout / "tools/upstream-env.sh"), "install"]

    def install(venv: str) -> "subprocess.CompletedProcess[str]":
        variables = {"VARIANT": "trial", "WHEELS": str(wheels), "VENV": str(tmp_path / venv)}
        return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)

    done = install("venv")
    if "needs Python 3.12" in done.stderr:
        pytest.skip("no Python 3.12 here")
    assert done.returncode == 0, done.stderr
    script = "import first, second, leonardo.hooks; print(first.value + second.value)"
    assert subprocess.check_output([tmp_path / "venv/bin/python", "-c", script], text=True) == "3\n"
    assert "ready already" in install("venv").stdout
    _wheel(wheels, "second", "value = 3")
    done = install("other")
    assert done.returncode == 1 and "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "other/.ready").exists()
