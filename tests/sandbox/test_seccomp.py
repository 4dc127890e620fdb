"""The filter's program, run by an interpreter of our own, so that other architectures are tested, too."""

import struct
from errno import EAFNOSUPPORT, ENOSYS, EPERM, EPROTONOSUPPORT

import pytest

from leonardo.sandbox import seccomp
from leonardo.sandbox.systemcalls import NUMBERS, PRETENDED, RULES

X86_64, X86_32, ARM_64, ARM_32 = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
CASES = [("x86_64", X86_64, 0), ("x86_64", X86_32, 1), ("aarch64", ARM_64, 2)]


ALLOWED, SUCCESS = 0x7FFF0000, 0x00050000  # let through, and answered with error number 0


def _run(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """The error number that the call is answered with; 0 where it is allowed."""
    answer = _answer_of(program, architecture, number, *arguments)
    assert answer == ALLOWED or answer & 0xFFFF0000 == SUCCESS
    return answer & 0xFFFF


def _answer_of(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the filter returns."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("=HBBI", program))
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, constant = instructions[at]
        at += 1
        match code:
            case 0x20:
                loaded = struct.unpack_from("<I", data, constant)[0]
            case 0x15:
                at += if_true if loaded == constant else if_false
            case 0x35:
                at += if_true if loaded >= constant else if_false
            case 0x45:
                at += if_true if loaded & constant else if_false
            case 0x06:
                return constant
            case _:
                pytest.fail(f"unknown instruction {code:#x}")


@pytest.mark.parametrize(("machine", "architecture", "column"), CASES)
def test_only_calls_with_a_rule_can_be_refused(machine: str, architecture: int, column: int) -> None:
    program = seccomp.program(machine)
    ruled = {NUMBERS[name][column] for name in RULES}
    always = {
        NUMBERS[name][column]
        for name, rules in RULES.items()
        if not any(vars(rules[0]).get(k) for k in ("equal", "bits", "outside"))
    }
    for number in range(600):
        answer = _run(program, architecture, number)
        if number not in ruled:
            assert answer == 0, number
        if number in always:
            assert answer in (EPERM, ENOSYS), number


@pytest.mark.parametrize(("machine", "architecture", "column"), CASES)
def test_pretended_owners_change_nothing_else(machine: str, architecture: int, column: int) -> None:
    program = seccomp.program(machine, pretending=True)
    numbers = {entry[column] for entry in PRETENDED.values()}
    for number in range(600):
        assert _answer_of(program, architecture, number) == (SUCCESS if number in numbers else ALLOWED), number


@pytest.mark.parametrize(("machine", "architecture", "column"), CASES)
def test_what_depends_on_arguments(machine: str, architecture: int, column: int) -> None:
    program = seccomp.program(machine)

    def answer(name: str, *arguments: int) -> int:
        number = NUMBERS[name][column]
        assert number is not None
        return _run(program, architecture, number, *arguments)

    new_user, files = 0x10000000, 0x400
    assert answer("clone", 0x01200011) == 0
    assert answer("clone", new_user | 17) == EPERM
    assert answer("clone", 0x00020000 | 17) == EPERM
    assert answer("unshare", files) == 0
    assert answer("unshare", files | new_user) == EPERM
    assert answer("socket", 1, 1, 0) == answer("socket", 2, 1, 0) == answer("socket", 10, 2, 17) == 0
    for family in (17, 38, 40):  # packets, ciphers, the machine's host
        assert answer("socket", family, 3, 0) == EAFNOSUPPORT
    assert answer("socket", 16, 3, 0) == 0
    assert answer("socket", 16, 3, 9) == answer("socket", 16, 3, 12) == EPROTONOSUPPORT
    assert answer("socketpair", 1, 1, 0) == 0
    assert answer("socketpair", 40, 1, 0) == EAFNOSUPPORT
    assert answer("prlimit64", 0, 7) == answer("prlimit64", 23, 7) == 0
    assert answer("prlimit64", 1, 7) == EPERM
    assert answer("setpriority", 0, 23, 5) == answer("setpriority", 1, 1, 5) == 0
    assert answer("setpriority", 0, 1, 5) == EPERM
    # the kernel looks at the low half of an argument only, so the filter does
    assert answer("prlimit64", (7 << 32) | 1, 7) == EPERM


def test_other_architectures_have_no_calls() -> None:
    assert _run(seccomp.program("aarch64"), ARM_32, 1) == ENOSYS
    assert _run(seccomp.program("x86_64"), ARM_64, 1) == ENOSYS
    assert _run(seccomp.program("x86_64"), X86_64, 0x40000000 | 1) == ENOSYS  # x32
    with pytest.raises(OSError, match="riscv64"):
        seccomp.program("riscv64")


def test_32_bit_programs_get_no_socket_by_the_old_way() -> None:
    assert _run(seccomp.program("x86_64"), X86_32, 102, 1) == ENOSYS
    assert _run(seccomp.program("x86_64"), X86_32, 102, 3) == 0
