"""On the machine with GPUs: unpack the kit, and run steps of it within a time, each with its logs in one archive.

Needs the standard library, and pyarrow to unpack. Everything goes below ``/tmp/leonardo-kit``; what a step leaves goes
to ``$OUT/<step>.tar.gz``, and how it ended to ``$OUT/summary.json``, also where it failed or ran out of time::

    python3 tests/gpu/machine.py unpack build/gpu-kit/*.tar.zst
    python3 tests/gpu/machine.py run --limit 560 check smoke calibrate
"""

import argparse
import ctypes
import hashlib
import json
import os
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import tarfile
import threading
import time
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
KIT = Path("/tmp/leonardo-kit")
PYTHON = KIT / "env" / "bin" / "python"
BASE = PROJECT / "build" / "gpu-kit" / "base.tar"
"""Where the site files look for it."""

_SET_CHILD_SUBREAPER = 36  # prctl(2)
_RESERVE = 25.0  # seconds that are kept for packing up
_SAMPLES = "timestamp,index,memory.used,utilization.gpu,power.draw"
_PROCESSES = "timestamp,gpu_bus_id,pid,used_gpu_memory"
_PRETRAINED = KIT / "cache" / "models" / "SmolLM2-135M-Instruct"
"""Where ``launch/models/smollm2.yaml`` finds it, by its name."""


@dataclass(frozen=True)
class Step:
    """What is run: a command, how long it may take, and how long it needs at least to be of use.

    ``resumes``: what an earlier command left of it stays, and it goes on there. ``variables``: its own.
    """

    command: tuple[str, ...]
    most: float
    least: float = 10.0
    resumes: bool = False
    variables: tuple[tuple[str, str], ...] = ()


def _stage(name: str, where: str, most: float, *start: str) -> Step:
    words = ("-m", "leonardo.cli", "stage", "run", name, "--engine", "upstream", "--site", where, *start)
    alone = ("--force", "a step of the kit runs alone, without the evidence of the stages below")
    places = ("--upstream", f"{KIT}/tree", "--upstream-python", str(PYTHON), "--out", "out", "--runs", "runs")
    return Step((str(PYTHON), *words, *places, *alone), most, 120.0)


_DESK = ("--policy", f"{KIT}/policy")
_SMOLLM2 = ("--model", "smollm2")
_TRANSFER = ("-m", "leonardo.cli", "transfer", "--stage", "transfer-smollm2", "--site", "gpu-desk-single")
_TF32 = (("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"),)
"""Matrix products in TF32, of sampler and learner alike: weights, sums and the rest stay in float32."""

STEPS = {
    "check": Step((str(PYTHON), "-m", "tests.gpu.check"), 120.0),
    "sandboxes": Step((str(PYTHON), "-m", "benchmarks.concurrent", "--base", str(BASE), "--out", "out"), 150.0),
    "smoke": _stage("smoke", "gpu-desk", 400.0, *_DESK),
    "calibrate": _stage("calibrate", "gpu-desk", 540.0, *_DESK),
    "smoke-single": _stage("smoke", "gpu-desk-single", 330.0, *_DESK),
    "calibrate-single": _stage("calibrate", "gpu-desk-single", 540.0, *_DESK),
    "pretrained": Step((str(PYTHON), "-m", "tests.gpu.pretrained", f"{KIT}/pretrained", str(_PRETRAINED)), 90.0),
    "calibrate-smollm2": _stage("calibrate", "gpu-desk", 540.0, *_SMOLLM2),
    "calibrate-smollm2-single": _stage("calibrate", "gpu-desk-single", 540.0, *_SMOLLM2),
    **{
        f"transfer-smollm2{'' if seed == 1 else f'-seed{seed}'}": Step(
            (str(PYTHON), *_TRANSFER, "--seed", str(seed), "--out", "out", "--runs", "runs"), 560.0, 60.0, True, _TF32
        )
        for seed in (1, 2, 3)
    },
}


# --- unpacking --------------------------------------------------------------------------------------------------------


def unpack(parts: Sequence[Path]) -> None:
    """Check every part and unpack it; make an environment of its packages and this Python's."""
    packages = _environment()
    with ThreadPoolExecutor() as pool:
        for line in pool.map(lambda part: _unpack_part(part, packages), parts):
            print(line, flush=True)
    started = time.monotonic()
    # the trainer's actors import all at once: they find it compiled
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([PYTHON, "-m", "compileall", "-q", "-j", "0", packages], check=False, **quiet)
    print(f"compiled in {time.monotonic() - started:.0f} s")


def _place_base() -> None:
    if (KIT / "base.tar").is_file() and not BASE.is_file():
        BASE.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(KIT / "base.tar", BASE)


def _environment() -> Path:
    """The environment's site-packages: the kit's packages, and behind them those of the Python that runs this."""
    if not PYTHON.exists():
        venv.create(PYTHON.parents[1], symlinks=True, with_pip=False)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = PYTHON.parents[1] / "lib" / version / "site-packages"
    behind = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()])
    lines = [f"import site; site.addsitedir({folder!r})\n" for folder in behind if Path(folder).is_dir()]
    (packages / "machine.pth").write_text("".join(lines))
    ray = PYTHON.parent / "ray"
    ray.write_text(f"#!{PYTHON}\nimport sys\nfrom ray.scripts.scripts import main\nsys.exit(main())\n")
    ray.chmod(0o755)
    return packages


def _unpack_part(part: Path, packages: Path) -> str:
    started = time.monotonic()
    said = part.with_suffix(".zst.sha256").read_text().split()[0]
    with part.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != said:
        raise SystemExit(f"{part} did not arrive whole: {part.stat().st_size} bytes, SHA-256 {found}, not {said}")
    count = 0
    import pyarrow  # not before it is needed: what runs steps is to depend on nothing

    with (
        pyarrow.input_stream(str(part), compression="zstd", buffer_size=1 << 20) as content,
        tarfile.open(fileobj=content, mode="r|") as archive,
    ):
        for member in archive:
            top, _, rest = member.name.partition("/")
            if top == "site":
                member.name = rest
            place = packages if top == "site" else KIT
            (place / member.name).parent.mkdir(parents=True, exist_ok=True)  # parts are unpacked side by side
            archive.extract(member, place, filter="tar")
            count += 1
    return f"{part.name}: whole, {count} files in {time.monotonic() - started:.0f} s"


# --- running ----------------------------------------------------------------------------------------------------------


def run(names: Sequence[str], limit: float, out: Path) -> int:
    """Run steps, one after the other, ``limit`` seconds at most. Returns how many did not end with 0."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what a step leaves behind is ours to find
    deadline = time.monotonic() + limit
    out.mkdir(parents=True, exist_ok=True)
    _place_base()
    summary: dict[str, dict[str, object]] = {}
    for name in names:
        step, left = STEPS[name], deadline - time.monotonic() - _RESERVE
        if left < step.least:
            summary[name] = {"skipped": f"{left:.0f} s are left, it needs {step.least:.0f}"}
        else:
            folder = KIT / "steps" / name
            if not step.resumes:
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            summary[name] = _run_step(step, min(step.most, left), folder)
            _pack_up(folder, out / f"{name}.tar.gz")
            print(f"--- {name}: {json.dumps(summary[name])}\n{_end_of(folder / 'log', 25)}", flush=True)
        (out / "summary.json").write_text(json.dumps(summary, indent=1))
    return sum(entry.get("exit_code") != 0 for entry in summary.values())


def _run_step(step: Step, seconds: float, folder: Path) -> dict[str, object]:
    before, started, timed_out = _gpus(), time.monotonic(), False
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(folder, ended))
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            step.command,
            cwd=folder,
            env=_variables() | dict(step.variables),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        watch.start()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            (folder / "processes-at-the-time-limit").write_text(_output("ps", "axo", "pid,ppid,stat,etimes,rss,args"))
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
    took = time.monotonic() - started
    ended.set()
    watch.join()
    time.sleep(1)
    left_over = _end_all()
    return {
        "exit_code": process.poll(),
        "seconds": round(took, 1),
        "timed_out": timed_out,
        "left_over": left_over,
        "gpus_before": before,
        "gpus_after": _gpus(),
        "memory_total_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
    }


def _variables() -> dict[str, str]:
    changes = {
        "PYTHONPATH": str(PROJECT),
        "PATH": f"{PYTHON.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "LEONARDO_CACHE": str(KIT / "cache"),
        "LEONARDO_BFCL": str(KIT / "bfcl"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "8",
        "COLUMNS": "160",
    }
    # multicast over NVLink is off: it can put the host's GPUs out of service
    off = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    return {**os.environ, **changes, **off}


def _watch(folder: Path, ended: threading.Event) -> None:
    """Sample the GPUs each second, and keep a copy of Ray's logs, which go with the run's scratch folder."""
    with (folder / "gpus.csv").open("a") as samples, (folder / "gpu-processes.csv").open("a") as processes:
        while not ended.wait(1):
            phase = _phase(folder)
            samples.write(_output("nvidia-smi", f"--query-gpu={_SAMPLES}", "--format=csv,noheader"))
            found = _output("nvidia-smi", f"--query-compute-apps={_PROCESSES}", "--format=csv,noheader,nounits")
            for line in found.splitlines():
                processes.write(f"{line}, {_name(line.split(', ')[2])}, {phase}\n")
            samples.flush()
            processes.flush()
            if int(time.monotonic()) % 10 == 0:
                _copy_ray_logs(folder)


def _phase(folder: Path) -> str:
    """What the stage is at, by the files it has written."""
    run = next(folder.glob("runs/*-seed*"), folder)
    if run.name.startswith("transfer"):
        made = [*run.glob("evaluation-*.json"), *run.glob("*/*/policy"), *run.glob("*/*/steps.jsonl")]
        newest = max(made, key=lambda path: path.stat().st_mtime, default=run)
        return f"after {newest.relative_to(run)}" if made else "warm start"
    if (run / "outcome.json").exists():
        return "evaluate trained"
    if (run / "steps.jsonl").exists():
        return "later steps"
    if (run / "weights.jsonl").exists():
        return "first step"
    if (run / "plan.json").exists():
        return "start"
    return "warm start and evaluate base"


def _name(pid: str) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        return " ".join(words)[:60].strip().replace(",", " ")
    return "?"


def _copy_ray_logs(folder: Path) -> None:
    for logs in Path("/tmp").glob("lr*/session_2*/logs"):
        with suppress(OSError, shutil.Error):
            shutil.copytree(logs, folder / "ray-logs", dirs_exist_ok=True)


def _end_all() -> list[str]:
    """End what the step left running; gives the command lines."""
    found = []
    for _ in range(20):
        listed = _output("ps", "--ppid", str(os.getpid()), "-o", "pid=,stat=,args=").splitlines()
        alive = [line.split(None, 2) for line in listed if " Z" not in line[:20] and "ps --ppid" not in line]
        if not alive:
            break
        for words in alive:
            found.append(" ".join(words[2:])[:200])
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(words[0]), signal.SIGKILL)
        time.sleep(0.3)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return found


def _pack_up(folder: Path, target: Path) -> None:
    """Everything of a step but weights of more than a few megabytes, and tokenizers."""

    def small(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        unwanted = "__pycache__" in member.name or member.name.endswith("tokenizer.json")
        return None if unwanted or member.size > 8_000_000 else member

    with tarfile.open(target, "w:gz") as archive:
        archive.add(folder, folder.name, filter=small)


def _gpus() -> list[str]:
    lines = _output("nvidia-smi", "--query-gpu=index,name,memory.used,memory.total", "--format=csv,noheader")
    return lines.splitlines()


def _output(*command: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20).stdout
    return ""


def _end_of(file: Path, lines: int) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:])


def main() -> int:
    """Unpack or run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("parts", type=Path, nargs="+")
    running = commands.add_parser("run")
    running.add_argument("--limit", type=float, default=560.0, help="seconds for all steps together")
    running.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    running.add_argument("steps", nargs="+", choices=sorted(STEPS))
    given = parser.parse_args()
    if given.command == "unpack":
        unpack(given.parts)
        return 0
    return run(given.steps, given.limit, given.out.absolute())


if __name__ == "__main__":
    sys.exit(main())
