"""Where a run writes: below its own folders, where they are named."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from leonardo.errors import InputError
from leonardo.hooks import paths


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder, named in this process's environment."""
    monkeypatch.setenv(paths.RUN, str(tmp_path / "run"))
    monkeypatch.setattr(paths, "LONGEST_SCRATCH", 4096)
    monkeypatch.setenv(paths.SCRATCH, str(tmp_path / "s"))
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "run"


def test_caches_lie_in_scratch_and_are_made(tmp_path: Path, run: Path) -> None:
    environment = {paths.RUN: str(run), paths.SCRATCH: str(tmp_path / "s"), "TRITON_CACHE_DIR": "/mine"}
    paths.set_variables(environment)
    assert environment["RAY_TMPDIR"] == str(tmp_path / "s")
    assert environment["TRITON_CACHE_DIR"] == "/mine"
    assert environment["WANDB_DIR"] == str(run)  # wandb makes a folder in it
    ours = {name: value for name, value in environment.items() if value.startswith(str(tmp_path))}
    assert ours.keys() >= {"TMPDIR", "VLLM_RPC_BASE_PATH", "TORCHINDUCTOR_CACHE_DIR"}
    # nobody makes folders for sockets and temporary files on the other nodes
    assert environment["TMPDIR"] == environment["VLLM_RPC_BASE_PATH"] == str(tmp_path / "s")
    assert (tmp_path / "s").is_dir() and run.is_dir()


def test_nothing_is_set_where_no_folder_is_named() -> None:
    environment = {"HOME": "/root"}
    paths.set_variables(environment)
    assert environment == {"HOME": "/root"}


@pytest.mark.parametrize(("folder", "said"), [("/tmp/" + "x" * 40, "too long names"), ("scratch", "absolute path")])
def test_unfit_scratch_is_refused(folder: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        paths.set_variables({paths.SCRATCH: folder})


def test_folder_that_cannot_be_made_is_named(tmp_path: Path, run: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        paths.set_variables({paths.SCRATCH: str(tmp_path / "file")})


def test_unfit_scratch_ends_the_process_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(paths.SCRATCH, "scratch")
    with pytest.raises(SystemExit) as ended:
        paths.use_run_folders()
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_longest_scratch_leaves_room_for_rays_sockets() -> None:
    folder = "/" + "x" * (paths.LONGEST_SCRATCH - 1)
    socket = f"{folder}/ray/session_2026-11-30_03-09-19_371249_4194304/sockets/plasma_store"
    assert len(socket) <= 107


def test_settings_follow_the_run_unless_a_person_set_them(tmp_path: Path, run: Path) -> None:
    defaults = {name: default for name, (default, _, _) in paths._SETTINGS.items()}
    config = SimpleNamespace(**defaults)
    paths.follow_run(config)
    assert config.rollouts_save_path == str(run / "rollouts")
    assert config.output_dir == str(run / "output")
    assert config.dataset_local_cache_dir == str(tmp_path / "s" / "transformed")
    config = SimpleNamespace(rollouts_save_path="/elsewhere")
    paths.follow_run(config)
    assert vars(config) == {"rollouts_save_path": "/elsewhere"}


def test_barrier_is_the_jobs_own(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for job, restart in (("1", "0"), ("1", "1"), ("2", "0")):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURM_RESTART_COUNT", restart)
        barrier = Path(paths.job_barrier("/cache/.model_download_done_local"))
        assert barrier.is_relative_to(run) and barrier.parent.is_dir()
        seen.add(barrier)
    assert len(seen) == 3


def test_archives_of_one_name_are_unpacked_apart(tmp_path: Path, run: Path) -> None:
    first, second = (paths.extraction_folder(f"/{place}/task-data.tar.gz.extracted") for place in "ab")
    assert first != second and first == paths.extraction_folder("/a/task-data.tar.gz.extracted")
    assert Path(first).parent.is_dir() and Path(first).is_relative_to(tmp_path / "s")


def test_places_are_upstreams_where_no_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(paths.RUN, raising=False)
    monkeypatch.delenv(paths.SCRATCH, raising=False)
    assert paths.job_barrier("/b") == "/b" and paths.extraction_folder("/e") == "/e"
    config = SimpleNamespace(output_dir="output/")
    paths.follow_run(config)
    assert config.output_dir == "output/"
