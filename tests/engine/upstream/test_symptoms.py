import pytest

from leonardo.engine.upstream.symptoms import classify


@pytest.mark.parametrize(
    ("log", "exit_code", "expected"),
    [
        ("fine\nOSError: [Errno 28] No space left on device\n", 1, "space: OSError"),
        ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue\n", 1, "engine-lost: "),
        ("ray.exceptions.ActorDiedError: The actor died\n", 1, "actor-lost: "),
        ("grpo_fast.py: error: unrecognized arguments: --nonsense\n", 2, "settings: "),
        ("x\nTraceback\nKeyError: 'weights'\n", 1, "trainer: KeyError: 'weights'"),
        ("nothing said\n", 143, "signal: the trainer was ended by SIGTERM"),
        ("", 1, "trainer: exit code 1, see "),
    ],
)
def test_classes(tmp_path, log, exit_code, expected):
    path = tmp_path / "trainer.log"
    path.write_text(log)
    assert classify(path, exit_code).startswith(expected)


def test_without_a_log(tmp_path):
    assert classify(tmp_path / "none", 139) == "signal: the trainer was ended by SIGSEGV"
