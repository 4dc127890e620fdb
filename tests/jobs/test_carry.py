"""What is carried arrives as it was, or is named."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from leonardo.assets.store import AssetStore
from leonardo.cli import app
from leonardo.errors import InputError
from leonardo.files import write_json
from leonardo.holding import AT_WORK, alone_in
from leonardo.jobs import carry
from leonardo.jobs.offline import model_findings
from leonardo.rollout.episodes import EpisodeSettings
from leonardo.sandbox.driver import Driver
from leonardo.site import load_site
from leonardo.stages.carry import _unpack_upstream, bundle_command, unbundle_command
from leonardo.stages.dataset import write_data
from leonardo.stages.definition import Model, load_model, load_stage
from leonardo.stages.launch import plan_stage
from leonardo.stages.launch_choices import Choices
from leonardo.stages.start import pretrained, start_findings
from leonardo.tasks.desk import generate, write_rows
from leonardo.tasks.rows import read_tasks

PROJECT = str(Path(__file__).parents[2])


def quiet(words: str) -> None:
    """Says nothing."""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with a model and two wheels."""
    model = tmp_path / "model"
    model.mkdir()
    for name, text in {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "weights"}.items():
        (model / name).write_text(text)
    (tmp_path / "wheels").mkdir()
    for name in ("a-1-py3-none-any.whl", "b-2-py3-none-any.whl"):
        (tmp_path / "wheels" / name).write_text(name)
    target = tmp_path / "bundle"
    assert carry.add(target, model, "models/small") == 3
    assert carry.add(target, tmp_path / "wheels", "wheels") == 2
    carry.seal(target, quiet)
    return target


def test_arrives(bundle: Path, tmp_path: Path) -> None:
    """All of it, and the second time nothing is new."""
    files = carry.verify(bundle)
    shared = tmp_path / "shared"
    assert carry.place(bundle, shared, files, quiet) == 5
    assert list(model_findings(shared / "models/small", "small")) == []
    (shared / "wheels/b-2-py3-none-any.whl").write_text("cut")
    assert carry.place(bundle, shared, files, quiet) == 1


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_text("model.safetensorx"), "models/small/model.safetensors is damaged"),
        (lambda path: path.unlink(), "models/small/model.safetensors is missing"),
    ],
)
def test_damage_is_named(bundle: Path, damage: Callable[[Path], object], words: str) -> None:
    """Before anything is placed."""
    damage(bundle / "models/small/model.safetensors")
    with pytest.raises(InputError, match=words):
        carry.verify(bundle)


def test_no_bundle(tmp_path: Path) -> None:
    """A folder that is none, and one that would write elsewhere."""
    with pytest.raises(InputError, match="is no bundle"):
        carry.verify(tmp_path)
    (tmp_path / "contents.json").write_text(json.dumps({"../x": {"size": 1, "sha256": ""}}))
    with pytest.raises(InputError, match="would lie outside"):
        carry.verify(tmp_path)


def test_links_arrive_as_files(tmp_path: Path) -> None:
    """As the hub's cache has them; one that leads nowhere is named."""
    blobs, model = tmp_path / ".cache/blobs", tmp_path / ".cache/snapshots/1"
    blobs.mkdir(parents=True)
    model.mkdir(parents=True)
    for name in ("config.json", "contents.json"):
        (blobs / name).write_text(name)
        (model / name).symlink_to(f"../../blobs/{name}")
    bundle = tmp_path / ".cache/bundle"
    assert carry.add(bundle, model, "models/small") == 2
    assert set(carry.seal(bundle, quiet)) == {"models/small/config.json", "models/small/contents.json"}
    shutil.rmtree(blobs)
    carry.place(bundle, tmp_path / "shared", carry.verify(bundle), quiet)
    assert (tmp_path / "shared/models/small/contents.json").read_text() == "contents.json"
    with pytest.raises(InputError, match=r"config\.json is a link that leads nowhere"):
        carry.add(bundle, model, "models/small")


def test_another_model_of_the_same_name_leaves_nothing_of_the_old(bundle: Path, tmp_path: Path) -> None:
    """Its files alone are in the bundle then; the rest of it stays."""
    (tmp_path / "new").mkdir()
    (tmp_path / "new/config.json").write_text("new")
    carry.add(bundle, tmp_path / "new", "models/small")
    assert {name.split("/")[0] for name in carry.seal(bundle, quiet)} == {"models", "wheels"}
    assert [path.name for path in (bundle / "models/small").iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\xff",
        "5",
        "[]",
        '{"x": 5}',
        '{"x": {}}',
        '{"x": {"size": "1", "sha256": "y"}}',
        '{"x": {"size": 1, "sha256": 2}}',
        '{"": {"size": 1, "sha256": "y"}}',
        '{"/x": {"size": 1, "sha256": "y"}}',
        '{"a/../../x": {"size": 1, "sha256": "y"}}',
    ],
)
def test_contents_that_are_none(tmp_path: Path, text: str) -> None:
    """One line, whatever is in the file."""
    (tmp_path / "contents.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="is no bundle") as caught:
        carry.verify(tmp_path)
    assert "\n" not in str(caught.value)


_PLACE = """
import sys
from pathlib import Path
from leonardo.errors import InputError
from leonardo.jobs import carry
bundle, shared = map(Path, sys.argv[1:])
try:
    carry.place(bundle, shared, carry.verify(bundle))
except (InputError, OSError) as error:
    sys.exit(str(error))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="mounts small and read-only file systems")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=100k", "left by the file system, and the bundle needs"),
        ("ro", "cannot be written to (Read-only"),
        ("nr_inodes=4", "No space"),
    ],
)
def test_a_place_that_is_full(bundle: Path, options: str, words: str) -> None:
    """Or may not be written to: one line, and no part of a file."""
    (bundle / "models/small/model.safetensors").write_bytes(b"x" * 300_000)
    carry.seal(bundle, quiet)
    script = f"mount -t tmpfs -o {options} tmpfs /mnt || exit 77; \"$@\"; code=$?; find /mnt -name '*.part'; exit $code"
    command = [sys.executable, "-c", _PLACE, str(bundle), "/mnt/shared" if options != "ro" else "/mnt"]
    mounted = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    done = subprocess.run(
        [*mounted, *command], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": PROJECT}
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this root may not mount")
    assert done.returncode == 1 and done.stdout == "" and words in done.stderr, done
    assert len(done.stderr.splitlines()) == 1


def test_killed_at_any_time_it_goes_on(tmp_path: Path) -> None:
    """What has its name is whole, whenever the copying was killed; in the end all is there, and nothing else."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system to copy to")
    (tmp_path / "wheels").mkdir()
    for number in range(40):
        (tmp_path / "wheels" / f"{number:02}.whl").write_bytes(bytes([number]) * 2_000_000)
    carry.add(tmp_path / "bundle", tmp_path / "wheels", "wheels")
    files = carry.seal(tmp_path / "bundle", quiet)
    with tempfile.TemporaryDirectory(dir=other) as shared:
        place = f"from pathlib import Path; from leonardo.jobs import carry; b = Path({str(tmp_path / 'bundle')!r})"
        command = [
            sys.executable,
            "-c",
            f"{place}; print(flush=True); carry.place(b, Path({shared!r}), carry._contents(b))",
        ]
        seen = []
        for wait in (0.005, 0.02, 0.04, 0.06):
            process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PROJECT}, stdout=subprocess.PIPE)
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            time.sleep(wait)
            process.kill()
            process.communicate()
            there = {path for path in Path(shared).rglob("*.whl") if not path.name.startswith(".")}
            assert all(path.read_bytes() == bytes([int(path.stem)]) * 2_000_000 for path in there)
            seen.append(len(there))
        assert seen == sorted(seen) and seen[0] < 40
        assert carry.place(tmp_path / "bundle", Path(shared), files, quiet) == 40 - seen[-1]
        assert {path.name for path in Path(shared, "wheels").iterdir()} == {f"{number:02}.whl" for number in range(40)}


def test_a_place_that_is_a_file(bundle: Path, tmp_path: Path) -> None:
    """Said before anything is written."""
    (tmp_path / "file").touch()
    for shared in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(InputError, match="cannot be written to"):
            carry.place(bundle, shared, carry.verify(bundle), quiet)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{file}",), "{file} cannot be written to"),
        (("{new}", "--model-folder", "small"), "--model-folder 'small' is not name=folder"),
        (("{new}", "--model-folder", "../x={tmp}"), "is not name=folder"),
        (("{new}", "--model-folder", "small={tmp}/none"), "{tmp}/none is no folder"),
        (("{new}", "--wheels", "{file}"), "{file} is no folder"),
        (("{new}", "--model", "none"), "No model none"),
        (("{new}", "--rows", "{file}"), "{file} is neither JSONL nor Parquet"),
    ],
)
def test_a_bundle_of_what_is_not_there(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    """One line, and no bundle is begun."""
    (tmp_path / "file").touch()
    names = {"file": tmp_path / "file", "new": tmp_path / "new", "tmp": tmp_path}
    done = CliRunner().invoke(app, ["launch", "bundle", *(word.format(**names) for word in arguments)])
    assert done.exit_code == 2 and words.format(**names) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    there = {path.name for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert there <= {carry.CONTENTS, AT_WORK}


def test_a_bundle_goes_into_a_folder_of_its_own(tmp_path: Path) -> None:
    """Not into a checkout or among other files; one that was begun is none, and goes on."""
    (tmp_path / "checkout/.git").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    for name, words in (("checkout", "is a checkout"), ("mine", "holds something else")):
        done = CliRunner().invoke(app, ["launch", "bundle", str(tmp_path / name)])
        assert done.exit_code == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob(carry.CONTENTS))
    carry.begin(tmp_path / "new")
    carry.begin(tmp_path / "new")
    with pytest.raises(InputError, match="is not finished"):
        carry.verify(tmp_path / "new")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("bundle", "give TO=dir"),
        ("unbundle", "give FROM=dir"),
        ("evaluate BASE=record", "give BASE=record TRAINED=record"),
        ("launch-check", "give STAGES="),
    ],
)
def test_a_target_says_what_it_cannot_do_without(target: str, words: str, tmp_path: Path) -> None:
    """Before it begins."""
    (tmp_path / ".ready").touch()
    command = ["make", "-s", "-o", str(tmp_path / ".ready"), f"VENV={tmp_path}", *target.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=20)
    assert done.returncode != 0 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_tree_that_is_there_is_left(tmp_path: Path) -> None:
    """Upstream's checkout is not written over, and what is something else is not, either."""
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InputError, match="holds something else"):
        _unpack_upstream(tmp_path / "a.tar", tmp_path)
    (tmp_path / "training").mkdir()
    _unpack_upstream(tmp_path / "a.tar", tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"


SITE = """
name: {name}
cache: {place}/cache-{name}
bases:
  ubuntu:22.04:
    {{registry: false, substitute: {{kind: archive, path: {archive}, reason: a test}}}}
cluster:
  pools: {{nodes: {{partition: test, cores: 1, memory: 1, gpus: 32, gpu: A100-64GB, tmp_size: 1}}}}
  qualities: [{{most_minutes: 6000, most_nodes: 32}}]
  roots: {{shared: {place}/shared, scratch: {place}/shared}}
"""


@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_carried_model_lies_where_every_stage_looks(
    bundle: Path, tmp_path: Path, offline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The desk engine and upstream's trainer; one that is not there is named with the places."""
    monkeypatch.delenv("LEONARDO_CACHE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    there = tmp_path / "there.yaml"
    there.write_text(SITE.format(name="there", place=tmp_path, archive=tmp_path / "base.tar"))
    model, site = load_model("smollm2"), load_site(there)
    with pytest.raises(InputError) as caught:
        pretrained(model, site)
    place = tmp_path / "shared/models/SmolLM2-135M-Instruct"
    assert "hub" in caught.value.what and str(place) in caught.value.what and "\n" not in str(caught.value)
    shutil.rmtree(bundle)
    with alone_in(tmp_path / "shared"):  # another unbundles there
        done = CliRunner().invoke(app, ["launch", "unbundle", str(bundle), "--site", str(there)])
    assert done.exit_code == 2 and "another process works there" in done.stderr and len(done.stderr.splitlines()) == 1
    bundle_command(bundle, model_folder=[f"smollm2={tmp_path / 'model'}"], upstream=tmp_path / "none")
    unbundle_command(bundle, site=str(there), upstream=tmp_path / "none")
    assert pretrained(model, site) == place
    asked = load_stage("reproduce"), model.model_copy(update={"shapes": load_model("qwen35_2b").shapes})
    plan = plan_stage(*asked, site, tmp_path / "run", Choices(engine="upstream", pool="nodes"))
    assert plan.pins["model_folder"] == str(place)
    (place / "model.safetensors").unlink()
    with pytest.raises(InputError, match="is not whole: it lacks weights"):
        pretrained(model, site)


def test_a_bundle_for_a_machine_of_one_s_own(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEONARDO_CACHE", raising=False)
    here = tmp_path / "here.yaml"
    here.write_text(f"name: here\ncache: {tmp_path / 'cache'}\n")
    shutil.rmtree(bundle)
    bundle_command(bundle, model_folder=[f"smollm2={tmp_path / 'model'}"], upstream=tmp_path / "none")
    unbundle_command(bundle, site=str(here), upstream=tmp_path / "none")
    assert pretrained(load_model("smollm2"), load_site(here)) == tmp_path / "cache/models/SmolLM2-135M-Instruct"


@pytest.mark.parametrize(
    ("pin", "wanted", "words"),
    [
        ({"name": "a/b", "revision": "1111"}, {"start": "c/b"}, "is c/b, .* holds a/b"),
        ({"name": "a/b", "revision": "1111"}, {"start": "a/b", "revision": "3333"}, "pinned to 3333, .* holds 1111"),
        (None, {"start": "a/b", "revision": "3333"}, "holds an unknown revision"),
        ([], {"start": "a/b", "revision": "3333"}, "holds an unknown revision"),
        ({"name": "a/b", "revision": "3333"}, {"start": "a/b", "revision": "3333"}, ""),
        ({"revision": 5}, {"start": "a/b"}, ""),
        (None, {"start": "a/b"}, ""),
    ],
)
def test_a_folder_that_says_it_is_another_model_is_not_taken(
    tmp_path: Path, pin: object, wanted: dict[str, str], words: str
) -> None:
    """By jobs of upstream's trainer and by the desk engine, in the same words."""
    path = tmp_path / "there.yaml"
    path.write_text(SITE.format(name="there", place=tmp_path, archive=tmp_path / "base.tar"))
    site, model = load_site(path), Model(name="mine", **wanted)
    folder = site.models / "b"
    folder.mkdir(parents=True)
    for name, text in {"config.json": "{}", "tokenizer.json": "", "model.safetensors": ""}.items():
        (folder / name).write_text(text)
    if pin is not None:
        write_json(folder / "pin.json", pin)
    of_jobs = [finding.what for finding in model_findings(folder, model.name, model.start, model.revision)]
    assert [finding.what for finding in start_findings(model, site)] == of_jobs
    if not words:
        assert pretrained(model, site) == folder and not of_jobs
    else:
        with pytest.raises(InputError, match=words):
            pretrained(model, site)


def test_a_snapshot_of_another_revision_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEONARDO_CACHE", str(tmp_path / "site"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub/models--a--b/snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs/main").write_text(snapshot.name)
    for name, text in {"config.json": "{}", "model.safetensors": ""}.items():
        (snapshot / name).write_text(text)
    assert pretrained(Model(name="mine", start="a/b"), load_site("desk")) == snapshot
    assert pretrained(Model(name="mine", start="a/b", revision="1" * 40), load_site("desk")) == snapshot
    with pytest.raises(InputError, match="not on this machine"):
        pretrained(Model(name="mine", start="a/b", revision="3" * 40), load_site("desk"))


@pytest.mark.parametrize(
    "more", [{"model_folder": ["a=m", "a=m2"]}, {"model_folder": ["smollm2=m"], "model": ["smollm2"]}]
)
def test_two_models_for_one_folder_are_refused(
    tmp_path: Path, more: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m2").mkdir()
    with pytest.raises(InputError, match="would be two models"):
        bundle_command(tmp_path / "bundle", upstream=tmp_path / "none", **more)
    assert not (tmp_path / "bundle").exists()


def test_rows_to_a_data_set(
    store: AssetStore, driver: Driver, tmp_path: Path, tiny_root_archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are built here are carried there, and become the data set that upstream's trainer reads."""
    monkeypatch.delenv("LEONARDO_CACHE", raising=False)
    here, there = tmp_path / "here.yaml", tmp_path / "there.yaml"
    for path in (here, there):
        path.write_text(SITE.format(name=path.stem, place=tmp_path, archive=tiny_root_archive))
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, generate("train", 2, 1))
    settings = load_site(here)
    built = AssetStore(settings.cache / "assets", driver, settings)
    entries = built.build(read_tasks(rows))
    built.close()
    bundle_command(tmp_path / "bundle", rows=rows, upstream=tmp_path / "none", site=str(here))
    unbundle_command(tmp_path / "bundle", site=str(there), upstream=tmp_path / "none")
    carried = read_tasks(tmp_path / "shared/data/rows.jsonl")
    out = tmp_path / "out/data.json"
    write_data(carried, tmp_path / "shared/data/small", out, EpisodeSettings(), site=there, console=Console(quiet=True))
    written = [json.loads(line) for line in (tmp_path / "shared/data/small/dataset/train.jsonl").open()]
    images = [row["env_config"]["env_configs"][0]["image"] for row in written]
    assert images == [f"prepared://{entry.prepared}" for entry in entries]


def test_the_second_of_two_at_once_is_refused(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that names the first, whose bundle holds nothing else than before."""
    command = [sys.executable, "-m", "leonardo.cli", "launch", "bundle", bundle, "--upstream", tmp_path / "none"]
    before, seal, second = carry.verify(bundle), carry.seal, []

    def while_it_works(*arguments: object) -> None:
        second.append(subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=60))
        seal(bundle, quiet)

    monkeypatch.setattr(carry, "seal", while_it_works)
    bundle_command(bundle, upstream=tmp_path / "none")
    [said] = second[0].stderr.splitlines()
    assert second[0].returncode == 2 and f"another process works there (pid {os.getpid()} " in said
    assert carry.verify(bundle).keys() - {"project.bundle"} == before.keys()


def test_source_bundle_and_placed_file_are_three(bundle: Path, tmp_path: Path) -> None:
    """Who edits one of them in place does not edit another."""
    carry.place(bundle, tmp_path / "shared", carry.verify(bundle), quiet)
    places = [tmp_path / "model", bundle / "models/small", tmp_path / "shared/models/small"]
    assert len({(place / "config.json").stat().st_ino for place in places}) == 3


@pytest.mark.parametrize("name", ["models/small/config.json", "models"])
def test_a_link_in_a_bundle_is_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    """Even where it leads to the same bytes."""
    (bundle / name).rename(tmp_path / "moved")
    (bundle / name).symlink_to(tmp_path / "moved")
    with pytest.raises(InputError, match=f"{name} is a link"):
        carry.verify(bundle)
