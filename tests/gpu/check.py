"""What is there, on the machine with GPUs: versions, imports, GPUs, sandbox drivers. Exits 1 where an import fails."""

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import time
import traceback
from pathlib import Path

MODULES = (
    "torch",
    "transformers",
    "transformers.models.qwen3_5.modeling_qwen3_5",
    "ray",
    "deepspeed",
    "vllm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_worker",
    "vllm.tool_parsers.qwen3xml_tool_parser",
    "vllm.distributed.weight_transfer.nccl_engine",
    "vllm.entrypoints.openai.api_server",
    "open_instruct.grpo_fast",
    "leonardo.stages.training",
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)
PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "huggingface-hub", "vllm", "ray", "deepspeed", "triton")


def main() -> int:
    """Print a line a fact."""
    print(
        f"Python {platform.python_version()} in {sys.executable}, kernel {platform.release()}, {os.cpu_count()} cores"
    )
    disk = shutil.disk_usage("/tmp")
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    shared = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    print(f"disk {disk.free / 1e9:.0f} GB free, {memory}, /dev/shm {shared / 1e9:.1f} GB")
    print(
        "programs:", {name: shutil.which(name) for name in ("gcc", "git", "nvcc", "unshare", "newuidmap", "xz", "ps")}
    )
    sys.path.append("/tmp/leonardo-kit/tree/training/open-instruct")
    for name in PACKAGES:
        try:
            print(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{name} is not there")
    failed = [name for name in MODULES if not _imports(name)]
    gpus = _gpus()
    _doctor()
    return 1 if failed or not gpus else 0


def _imports(name: str) -> bool:
    started = time.monotonic()
    try:
        importlib.import_module(name)
    except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
        print(f"import {name}: FAILED\n{traceback.format_exc(limit=-6)}")
        return False
    print(f"import {name}: {time.monotonic() - started:.1f} s")
    return True


def _gpus() -> int:
    import torch

    count = torch.cuda.device_count()
    for number in range(count):
        started = time.monotonic()
        total = torch.ones(1024, 1024, device=f"cuda:{number}", dtype=torch.bfloat16).sum().item()
        print(f"GPU {number}: {torch.cuda.get_device_name(number)}, sum {total}, {time.monotonic() - started:.1f} s")
    return count


def _doctor() -> None:
    from leonardo.sandbox.drivers import choose

    choice = choose("auto")
    with choice.driver:
        print(
            f"sandboxes: {choice.driver.name}{', degraded: ' if choice.driver.degraded else ''}{choice.driver.degraded}"
        )
    for refusal in choice.refusals:
        print(f"  not used: {refusal}")


if __name__ == "__main__":
    sys.exit(main())
