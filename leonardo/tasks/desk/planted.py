"""A corpus for diagnosis: desk tasks, tasks with the package sets of real rows, tasks that only a compat rule repairs,
and twenty with a planted fault each, of which the class is known.

Faults are made of what every image has (a shell, coreutils, perl), so that the same corpus serves on any base.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from leonardo.errors import FailureClass, InputError
from leonardo.tasks.desk.corpus import DeskTask, generate
from leonardo.tasks.desk.scene import Commands
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files

PACKAGE_SETS: tuple[tuple[str, str], ...] = (
    ("python3 python3-pip jq", "pytest"),
    ("python3 python3-pip", "pytest"),
    ("python3 python3-pip", "pytest"),
    ("python3 python3-pip", "pytest"),
    ("python3 python3-pip gcc libc6-dev", "pytest"),
    ("python3 python3-pip sqlite3", "pytest"),
    ("python3 python3-pip jq nasm binutils", "pytest"),
    ("python3 python3-pip", "pytest networkx"),
    ("python3 python3-pip gcc binutils", "pytest networkx"),
    ("python3 python3-pip socat curl", "pytest numpy scipy"),
    ("python3 python3-pip nginx curl openssl", "pytest"),
    ("python3 python3-pip expect socat acl netcat-openbsd g++", "pytest"),
)
"""What twelve real rows install by apt and by pip."""


@dataclass(frozen=True)
class CorpusTask:
    """A task of the corpus and what is known of it.

    Attributes:
        task: the task.
        fault: the class of its planted fault, ``None`` where it is sound.
        attempt: commands of an episode to replay, after which the verifier is to say no.
        damaged: its delta is to be damaged between build and use.
        rule: the compat rule without which it cannot be built, ``""`` if none.
    """

    task: Task
    fault: FailureClass | None = None
    attempt: Commands = ()
    damaged: bool = False
    rule: str = ""


def corpus(seed: int, count: int = 300, *, packages: bool = True) -> list[CorpusTask]:
    """``count`` tasks in a seeded order: every fault once, the package sets, every repair twice, the rest desk tasks.

    Args:
        packages: with the package sets of real rows, which need a package mirror.

    Raises:
        InputError: ``count`` is too small to hold them.
    """
    faults = _faults()
    repairs = [repair for repair in REPAIRS for _ in range(2)]
    sets = PACKAGE_SETS if packages else ()
    special = len(faults) + len(repairs) + len(sets)
    if count < special:
        raise InputError(f"A corpus of {count} tasks is too small", f"Ask for {special} or more")
    drawn = generate("train", count, seed)
    names = iter(drawn)
    tasks = [fault(next(names)) for fault in faults]
    tasks += [_repaired(next(names), rule, line) for rule, line in repairs]
    tasks += [_with_packages(next(names), apt, pip) for apt, pip in sets]
    tasks += [CorpusTask(desk.task) for desk in names]
    Random(f"{seed} corpus").shuffle(tasks)
    return tasks


REPAIRS: tuple[tuple[str, str], ...] = (
    ("sudo-as-root", "sudo mkdir -p /opt/made"),
    ("systemctl-without-init", "systemctl daemon-reload"),
    ("limits-beyond-the-sandbox", "ulimit -n 1048576"),
)
"""Rule, and a line of a set-up that fails without it."""


def _changed(desk: DeskTask, kind: str, *, post: str = "", **fields: str) -> Task:
    """``desk`` with lines added to its set-up and fields of its row replaced."""
    row = desk.row | fields
    definition = row["container_def"] + "".join(f"    {line}\n" for line in post.splitlines())
    return Task(
        id=f"{kind}-{desk.id.rpartition('-')[2]}",
        instruction=row["description"],
        definition=definition,
        tests=verifier_files(row["test_final_state"]),
        kind=kind,
        reference_solution=row["reference_solution"],
    )


def _with_packages(desk: DeskTask, apt: str, pip: str) -> CorpusTask:
    lines = f"apt-get update && apt-get install -y {apt}\npip3 install {pip}\nuseradd -m -s /bin/bash user || true\n"
    return CorpusTask(_changed(desk, "packages", post=lines))


def _repaired(desk: DeskTask, rule: str, line: str) -> CorpusTask:
    return CorpusTask(_changed(desk, "repaired", post=line), rule=rule)


def _faults() -> list[Callable[[DeskTask], CorpusTask]]:
    """One function a planted fault; each makes it of a desk task that is sound."""

    def in_set_up(failure: FailureClass, lines: str) -> Callable[[DeskTask], CorpusTask]:
        return lambda desk: CorpusTask(_changed(desk, f"planted-{failure}", post=lines), failure)

    def of_row(failure: FailureClass, **fields: str) -> Callable[[DeskTask], CorpusTask]:
        return lambda desk: CorpusTask(_changed(desk, f"planted-{failure}", **fields), failure)

    def of_verifier(
        failure: FailureClass, change: Callable[[DeskTask], dict[str, str]]
    ) -> Callable[[DeskTask], CorpusTask]:
        return lambda desk: CorpusTask(_changed(desk, f"planted-{failure}", **change(desk)), failure)

    shell = "#!/bin/bash\n"
    taken = "socket(S, 2, 1, 0); socket(T, 2, 1, 0); bind(S, pack(q(S n N x8), 2, 0, 0x7f000001)) or die;"
    taken += " listen(S, 1); bind(T, getsockname(S)) or die qq(bind: $!\\n)"
    return [
        in_set_up(FailureClass.MIRROR, "bash -c 'exec 3<>/dev/tcp/127.0.0.1/9'"),
        in_set_up(
            FailureClass.MIRROR,
            "echo 'Err:1 http://mirror.example stable InRelease'\n"
            "echo '  Temporary failure resolving mirror.example'\n"
            "echo 'W: Failed to fetch http://mirror.example/dists/stable/InRelease'",
        ),
        in_set_up(FailureClass.SPACE, "cat /etc/passwd > /dev/full"),
        in_set_up(FailureClass.KERNEL_FEATURE, "perl -e 'socket(S, 40, 1, 0) or die qq(socket: $!\\n)'"),
        lambda desk: CorpusTask(_changed(desk, "planted-runtime"), FailureClass.RUNTIME, damaged=True),
        in_set_up(FailureClass.SET_UP, "cp /data/absent /data/present"),
        in_set_up(FailureClass.SERVICE, "service absent start"),
        in_set_up(FailureClass.SERVICE, "systemctl start absent"),
        in_set_up(FailureClass.PRIVILEGE, "mount -t tmpfs none /mnt"),
        in_set_up(FailureClass.PRIVILEGE, "bash -c 'echo 1 > /proc/sys/vm/swappiness'"),
        in_set_up(FailureClass.PORT, f"perl -e '{taken}'"),
        of_row(FailureClass.NETWORK, reference_solution=f"{shell}set -e\nexec 3<>/dev/tcp/files.example.com/80\n"),
        of_row(FailureClass.VERIFIER_BROKEN, test_final_state="#!/opt/absent/interpreter\nexit 0\n"),
        of_row(FailureClass.VERIFIER_BROKEN, test_final_state=f"{shell}absent-checker /data\n"),
        of_row(FailureClass.VERIFIER_ALREADY_PASSES, test_final_state=f"{shell}exit 0\n"),
        of_row(FailureClass.REFERENCE_FAILS, reference_solution=f"{shell}true\n"),
        of_verifier(FailureClass.CONTRADICTS, _contradiction),
        of_verifier(FailureClass.NEEDS_NETWORK, _download),
        lambda desk: CorpusTask(_changed(desk, "planted-leak", post=_kept_solution(desk)), FailureClass.LEAKS),
        lambda desk: CorpusTask(_changed(desk, "planted-agent"), FailureClass.AGENT, attempt=("rm -rf /data",)),
    ]


def _contradiction(desk: DeskTask) -> dict[str, str]:
    """A verifier that asks for a file of which the instruction says nothing."""
    module = 'import os\n\n\ndef test_report():\n    assert os.path.exists("/srv/results/final_report.csv")\n'
    return {"test_final_state": module}


def _download(desk: DeskTask) -> dict[str, str]:
    """A task that begins with a download, and a verifier that compares with what is there."""
    address = "https://files.example.com/data/set.csv"
    return {
        "description": f"Download {address} to /data/set.csv.",
        "test_final_state": f"#!/bin/bash\n[ -f /data/set.csv ] && curl -fsS {address} | cmp - /data/set.csv\n",
        "reference_solution": f"#!/bin/bash\nset -e\ncurl -fsS {address} -o /data/set.csv\n",
    }


def _kept_solution(desk: DeskTask) -> str:
    """Lines of a set-up that leave the verifier where the agent finds it."""
    script = desk.scene.verifier.replace("'", "'\\''")
    return f"mkdir -p /opt/checks\nprintf '%s' '{script}' > /opt/checks/test_final_state"
