"""A machine without an accelerator; with one, nothing is changed."""

import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from leonardo.hooks import cpu

torch = pytest.importorskip("torch", reason="torch is not installed (the extra desk)")


@pytest.fixture(params=[True, False], ids=["without", "with"])
def bare(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the machine has no accelerator."""
    monkeypatch.setattr(cpu, "without_accelerator", lambda: request.param)
    return request.param


def test_torch_is_itself_where_there_is_an_accelerator(bare: bool) -> None:
    assert (cpu.torch_here(torch) is torch) == (not bare)


@pytest.mark.parametrize("missing", [(), ("fla",), ("fla", "causal_conv1d")])
def test_pack_length(
    bare: bool, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu, "find_spec", lambda package: None if package in missing else object())
    cpu.has_linear_kernels.cache_clear()
    assert cpu.pack_length_here(4096) == (1 if bare or missing else 4096)
    assert ("is not installed" in caplog.text) == (not bare and bool(missing))
    cpu.has_linear_kernels.cache_clear()


def test_transfer_is_changed_only_without_an_accelerator(bare: bool) -> None:
    class Transfer:
        trainer_init = "upstream's"

    cpu.use_gloo(Transfer)
    assert (Transfer.trainer_init == "upstream's") == (not bare)


def test_device_number_means_the_cpu() -> None:
    here = cpu.TorchOnCPU()
    assert here.device(0) == torch.device("cpu")
    assert here.device("meta") == torch.device("meta")
    here.cuda.set_device(0)
    here.cuda.synchronize()
    assert here.cuda.is_available is torch.cuda.is_available
    assert here.ones(2).sum() == 2


def test_torch_is_pickled_as_that_of_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(cpu.TorchOnCPU())
    monkeypatch.setattr(cpu, "without_accelerator", lambda: True)
    assert isinstance(pickle.loads(data), cpu.TorchOnCPU)
    monkeypatch.setattr(cpu, "without_accelerator", lambda: False)
    assert pickle.loads(data) is torch


class Wire:
    """Stands for a process group: what is broadcast is received in the same order, as bytes."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def broadcast(self, tensors: list[Any], options: Any) -> Any:
        (tensor,) = tensors
        assert tensor.dtype == torch.uint8 and tensor.dim() == 1
        if tensor.any():
            self.sent.append(tensor.clone())
        else:
            tensor.copy_(self.sent.pop(0))
        return SimpleNamespace(wait=lambda: None)


def group(wire: Wire) -> cpu.GlooGroup:
    made = object.__new__(cpu.GlooGroup)
    made._group = wire
    return made


def test_weights_arrive_as_they_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", torch.zeros)  # so that the wire can tell who receives
    wire = Wire()
    weights = {
        "matrix": torch.randn(3, 4).to(torch.bfloat16),
        "transposed": torch.randn(3, 4).T,
        "scalar": torch.tensor(2.5),
        "integers": torch.arange(1, 6),
    }
    cpu._send_weights(iter(weights.items()), {"group": group(wire)})
    received: dict[str, Any] = {}
    info = SimpleNamespace(
        names=list(weights),
        dtype_names=[str(weight.dtype).split(".")[-1] for weight in weights.values()],
        shapes=[list(weight.shape) for weight in weights.values()],
    )
    cpu._receive_weights(SimpleNamespace(model_update_group=group(wire)), info, lambda pairs: received.update(pairs))
    assert all(torch.equal(received[name], weight) for name, weight in weights.items())


PROCESS_GROUP = """
import os, socket
from leonardo.hooks import cpu
cpu.without_accelerator = lambda: True
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
import torch.distributed as dist
cpu.join_process_group(1)
cpu.join_process_group(1)
print(dist.get_backend(), dist.get_world_size())
"""


def test_process_group_is_over_gloo() -> None:
    output = subprocess.run([sys.executable, "-c", PROCESS_GROUP], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["gloo", "1"]
