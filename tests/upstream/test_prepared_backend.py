"""Patch 0001 in upstream's own module: ``create_backend("prepared")`` gives our sandboxes, the rest is as it was."""

import types

import pytest

from leonardo.hooks.sandbox import PreparedBackend
from leonardo.overlay.tree import Tree

MODULE = "training/open-instruct/open_instruct/environments/backends.py"
IMAGE = f"prepared://{'a' * 64}"


@pytest.fixture
def backends(upstream: Tree, commit: tuple[str, str], stand_ins: None) -> types.ModuleType:
    """Upstream's module, unpatched or patched."""
    module = types.ModuleType("backends")
    exec(compile(upstream.git("show", f"{commit[1]}:{MODULE}"), MODULE, "exec"), vars(module))
    return module


def test_prepared_backend_is_made_with_the_patch_only(backends: types.ModuleType, commit: tuple[str, str]) -> None:
    if commit[0] == "unpatched":
        with pytest.raises(ValueError, match="prepared"):
            backends.create_backend("prepared", image=IMAGE)
        return
    backend = backends.create_backend("prepared", image=IMAGE, timeout=7, mem_limit="2g")
    assert isinstance(backend, PreparedBackend)
    assert backend._out_of_memory is backends.SandboxOOMError
    # every method that upstream's interface asks for is there
    assert all(callable(getattr(backend, name)) for name in backends.SandboxBackend.__abstractmethods__)


def test_other_backends_are_upstreams(backends: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(backends.create_backend("docker"), backends.DockerBackend)
    with pytest.raises(ValueError, match="podman"):
        backends.create_backend("podman")
