"""Why something failed: the one vocabulary of builds, gates, episodes, reports and the repair log.

docs/failures.md is this file as a table (``leonardo failures``); a test holds the two together.
"""

from enum import StrEnum


class FailureFamily(StrEnum):
    """Whose fault a failure is, and with that what becomes of it."""

    INFRASTRUCTURE = "infrastructure"
    """The machine's: retried, excluded, counted, never a reward."""
    ENVIRONMENT = "environment"
    """What the task's world needs cannot be had here: the task is left out until a rule or a site mends it."""
    TASK = "task"
    """The task itself is at fault: it is left out of training unless asked for."""
    AGENT = "agent"
    """The agent's own doing: a reward of 0 like any other."""


class FailureClass(StrEnum):
    """A class of failure. Its value is what records, reports and the repair log say.

    Attributes:
        family: whose fault it is.
        meaning: what failed, in a few words.
        sign: what tells this class from the others.
        remedy: what to do about it.
    """

    family: FailureFamily
    meaning: str
    sign: str
    remedy: str

    def __new__(cls, value: str, family: FailureFamily, meaning: str, sign: str, remedy: str) -> "FailureClass":
        member = str.__new__(cls, value)
        member._value_ = value
        member.family, member.meaning, member.sign, member.remedy = family, meaning, sign, remedy
        return member

    MIRROR = (
        "mirror",
        FailureFamily.INFRASTRUCTURE,
        "package mirror or registry not reached",
        "apt, pip, curl, wget or git say that a host, name, certificate or checksum failed, "
        "also where the script went on and ended with 0",
        "run again; look at the mirror and the proxies when it stays",
    )
    SPACE = (
        "space",
        FailureFamily.INFRASTRUCTURE,
        "disk or memory full",
        "the writable layer was full, 'No space left on device', a quota, or the memory bound ended the sandbox",
        "free space or raise the limits of a set-up",
    )
    KERNEL_FEATURE = (
        "kernel-feature",
        FailureFamily.INFRASTRUCTURE,
        "a kernel feature is missing",
        "a driver's self-test fails, or a set-up ends with 'not supported', 'not implemented' or 'No such device'",
        "leonardo doctor says which; another driver or another node",
    )
    RUNTIME = (
        "runtime",
        FailureFamily.INFRASTRUCTURE,
        "the sandbox runtime failed",
        "a sandbox could not be started or prepared, ended by itself, or differs after a reset",
        "run again; the attempt is excluded",
    )
    ENDPOINT = (
        "endpoint",
        FailureFamily.INFRASTRUCTURE,
        "the policy's server failed",
        "it was not reached, timed out, was overloaded or gave no answer that can be read, after all retries",
        "look at the server; the same command makes up for the attempts that were lost",
    )
    SET_UP = (
        "set-up",
        FailureFamily.ENVIRONMENT,
        "the task's set-up failed",
        "the script ended with another code than 0, and nothing below names why",
        "read its log; write a compat rule where the cause is of a known kind",
    )
    SET_UP_TIMEOUT = (
        "set-up-timeout",
        FailureFamily.ENVIRONMENT,
        "the task's set-up took too long",
        "it was ended at its time limit",
        "raise the limit, or leave the task out",
    )
    UNSUPPORTED = (
        "unsupported-definition",
        FailureFamily.ENVIRONMENT,
        "the definition asks for what is not supported",
        "a section, header or option of the definition that is not honoured; known before anything is run",
        "put it into %post",
    )
    SERVICE = (
        "service",
        FailureFamily.ENVIRONMENT,
        "a service did not come up",
        "the set-up ends in service, systemctl or invoke-rc.d, or in a client that finds no server on this machine",
        "start it in the foreground of a script of its own; see the rules for services",
    )
    PRIVILEGE = (
        "privilege",
        FailureFamily.ENVIRONMENT,
        "more privilege needed than there is",
        "mounts, loop devices, modules, device nodes, kernel settings or owners that a sandbox may not have",
        "none without privilege: the task is left out",
    )
    PORT = (
        "port",
        FailureFamily.ENVIRONMENT,
        "a fixed port is taken",
        "'Address already in use' during a set-up, which has the machine's network; episodes have one of their own",
        "run the set-up alone; see the rules for ports",
    )
    NETWORK = (
        "network-at-run-time",
        FailureFamily.ENVIRONMENT,
        "network needed at run time",
        "the reference solution or the verifier asks for a host, and sandboxes have no network",
        "install what it fetches in the set-up",
    )
    VERIFIER_BROKEN = (
        "verifier-broken",
        FailureFamily.TASK,
        "the verifier does not run",
        "no interpreter, an import that fails, no test, a time limit: nothing was said about the task",
        "install what it imports in the set-up",
    )
    VERIFIER_ALREADY_PASSES = (
        "verifier-already-passes",
        FailureFamily.TASK,
        "the verifier passes on the initial state",
        "it passes in a sandbox where nothing was done",
        "leave the task out: every policy gets its reward",
    )
    REFERENCE_FAILS = (
        "reference-fails",
        FailureFamily.TASK,
        "the reference solution fails",
        "the verifier runs and says no after the reference solution",
        "read the verifier's last line; the task is left out",
    )
    CONTRADICTS = (
        "verifier-contradicts-instruction",
        FailureFamily.TASK,
        "the verifier contradicts the instruction",
        "it asks for something else than the instruction names, so that no solution of the task passes",
        "leave the task out",
    )
    NEEDS_NETWORK = (
        "needs-the-network",
        FailureFamily.TASK,
        "the task cannot be done without a network",
        "instruction or verifier name a host or a download that is not there",
        "leave the task out",
    )
    LEAKS = (
        "leaks-its-answer",
        FailureFamily.TASK,
        "the prepared state holds the answer",
        "the verifier, the solution or an output that the agent should make is there before it begins",
        "leave the task out, or mend its set-up",
    )
    AGENT = (
        "agent",
        FailureFamily.AGENT,
        "the agent's own doing; counts as reward 0",
        "the verifier says no, or no longer runs, after what the agent did in a state where it ran before",
        "none: that is what is trained",
    )


def failures_page() -> str:
    """The taxonomy as Markdown: docs/failures.md."""
    lines = [
        "# Failure classes",
        "",
        "Written by `leonardo failures` from [leonardo/taxonomy.py](../leonardo/taxonomy.py). Every failed build, gate",
        "and episode has one of these classes. An infrastructure failure is never a reward.",
    ]
    for family in FailureFamily:
        lines += ["", f"## {family.value.capitalize()}", ""]
        lines += ["| class | what failed | told by | what to do |", "|---|---|---|---|"]
        lines += [
            f"| `{entry.value}` | {entry.meaning} | {entry.sign} | {entry.remedy} |"
            for entry in FailureClass
            if entry.family is family
        ]
    return "\n".join(lines) + "\n"
