"""Upstream's trainer on a machine without an accelerator, for small runs. Where CUDA is available, all of it does
nothing (but :func:`pack_length_here`, where kernels are missing).

What upstream does over NCCL goes over gloo here, a device number means the CPU, and ``torch.cuda`` keeps still.
"""

import logging
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from typing import Any

_log = logging.getLogger(__name__)


@cache
def without_accelerator() -> bool:
    """Whether this machine has no CUDA device."""
    import torch

    return not torch.cuda.is_available()


def torch_here(torch: Any) -> Any:
    """The torch module for upstream's trainer to use in its place: itself where there is an accelerator."""
    return TorchOnCPU() if without_accelerator() else torch


class TorchOnCPU:
    """The torch module, in which a device number means the CPU and what waits for a CUDA device does not wait."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _torch_of_this_process, ()

    @property
    def cuda(self) -> Any:
        """``torch.cuda``, quiet."""
        return _QuietCuda()

    @staticmethod
    def device(*arguments: Any, **options: Any) -> Any:
        """``torch.device``."""
        import torch

        if arguments and isinstance(arguments[0], int):
            return torch.device("cpu")
        return torch.device(*arguments, **options)


def _torch_of_this_process() -> Any:
    import torch

    return torch_here(torch)


class _QuietCuda:
    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch.cuda, name)

    @staticmethod
    def set_device(device: Any) -> None: ...

    @staticmethod
    def synchronize(device: Any = None) -> None: ...


def join_process_group(timeout_minutes: float) -> None:
    """Initialise torch.distributed over gloo, before upstream would do it over NCCL."""
    import torch.distributed

    if without_accelerator() and not torch.distributed.is_initialized():
        torch.distributed.init_process_group(backend="gloo", timeout=timedelta(minutes=timeout_minutes))


def pack_length_here(pack_length: int) -> int:
    """How many tokens go into a pack; 1 lets every sequence have a pack of its own.

    The linear attention that runs without its kernels does not see where a sequence ends, and says nothing: those that
    share a pack would flow into each other. That is so without a GPU, and with one where a package is missing.
    """
    return pack_length if has_linear_kernels() else 1


@cache
def has_linear_kernels() -> bool:
    """Whether the linear attention runs by kernels that see where a packed sequence ends."""
    if without_accelerator():
        return False
    missing = [package for package in ("fla", "causal_conv1d") if find_spec(package) is None]
    if missing:
        _log.warning("Every sequence has a pack of its own, which is slow: %s is not installed", " and ".join(missing))
    return not missing


def use_gloo(transfer: Any) -> None:
    """Let vLLM's NCCL weight transfer (its class is ``transfer``) go over gloo."""
    if without_accelerator():
        transfer.trainer_init = staticmethod(_trainer_init)
        transfer.trainer_send_weights = staticmethod(_send_weights)
        transfer.init_transfer_engine = _init_transfer
        transfer.receive_weights = _receive_weights


class GlooGroup:
    """A process group of the trainer (rank 0) and the workers that take its weights.

    Args:
        address: where rank 0 listens: host and port.
        rank: of this process.
        world_size: how many processes there are.
    """

    def __init__(self, address: tuple[str, int], rank: int, world_size: int) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self._group = stateless_init_torch_distributed_process_group(*address, rank, world_size, backend="gloo")

    def broadcast(self, tensor: Any) -> None:
        """Send a contiguous tensor, or receive into it, as bytes: gloo does not know every number format."""
        import torch

        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([tensor.view(-1).view(torch.uint8)], options).wait()


def _trainer_init(init_info: Any) -> GlooGroup:
    values = init_info if isinstance(init_info, dict) else vars(init_info)
    return GlooGroup((values["master_address"], values["master_port"]), 0, values["world_size"])


def _send_weights(iterator: Any, trainer_args: Any) -> None:
    group = trainer_args["group"] if isinstance(trainer_args, dict) else trainer_args.group
    for _, tensor in iterator:
        group.broadcast(tensor.detach().contiguous())


def _init_transfer(self: Any, init_info: Any) -> None:
    parallel = self.parallel_config
    rank = parallel.data_parallel_index * parallel.world_size + parallel.rank + init_info.rank_offset
    address = (init_info.master_address, init_info.master_port)
    self.model_update_group = GlooGroup(address, rank, init_info.world_size)


def _receive_weights(self: Any, update_info: Any, load_weights: Any) -> None:
    import torch

    for name, kind, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
        weight = torch.empty(shape, dtype=getattr(torch, kind), device="cpu")
        self.model_update_group.broadcast(weight)
        load_weights([(name, weight)])


def prepare_engine() -> None:
    """Let this process of vLLM's engine take weights: its CPU worker was not written for it."""
    if not without_accelerator():
        return
    import torch
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
    from vllm.v1.worker.cpu_worker import CPUWorker

    use_gloo(NCCLWeightTransferEngine)
    torch.accelerator.synchronize = lambda *arguments, **options: None
    init_device = CPUWorker.init_device

    def init_device_and_name_it(self: Any) -> None:
        init_device(self)
        self.device = torch.device("cpu")  # the GPU worker's methods for weights use it

    CPUWorker.init_device = init_device_and_name_it
