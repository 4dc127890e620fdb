"""The filter of system calls that process 1 of a sandbox puts on itself, and so on everything in the sandbox.

Classic BPF through prctl(2), no library. It is installed with the namespace's CAP_SYS_ADMIN instead of no_new_privs,
which would break ``su`` and ``sudo``. Calls without a rule cost nothing on kernels from 5.11 on, which remember that
the filter lets them pass whatever their arguments are.
"""

import ctypes
import functools
import struct
from collections.abc import Mapping, Sequence
from errno import EINVAL, ENOSYS

from leonardo.sandbox import linux
from leonardo.sandbox.systemcalls import NUMBERS, PRETENDED, RULES, Rule

_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X86_64, _X86_32, _ARM_64 = 0xC000003E, 0x40000003, 0xC00000B7  # AUDIT_ARCH_*
_COLUMNS = {_X86_64: 0, _X86_32: 1, _ARM_64: 2}
_ARCHITECTURES = {"x86_64": (_X86_64, _X86_32), "aarch64": (_ARM_64,)}
_FIRST_OF_X32 = 0x40000000
_LEAF = 4

_SYSTEM_CALL = {"x86_64": 317, "aarch64": 277}  # seccomp(2)
_SET_MODE_FILTER, _KEEP_SPECULATION = 1, 4  # without the flag, old kernels slow the filtered processes down

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant
Program = list[Instruction]


def _answer(error: int) -> Instruction:
    return (_RETURN, 0, 0, _ERROR | error)


def _load_argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)  # the low half: both architectures are little-endian


def _rule(rule: Rule) -> Program:
    """Answers the call, or runs on to what follows."""
    code: Program = [_answer(rule.error)]
    if rule.outside:
        argument, values = rule.outside
        tests = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
        code = [_load_argument(argument), *tests, *code]
    if rule.bits:
        argument, mask = rule.bits
        code = [_load_argument(argument), (_HAS_BIT, 0, len(code), mask), *code]
    for argument, value in rule.equal:
        code = [_load_argument(argument), (_EQUAL, 0, len(code), value), *code]
    return code


def _search(calls: Sequence[tuple[int, Program]]) -> Program:
    """By halving, find the call's number among ``calls`` (sorted) and run its rules; everything else is allowed."""
    if len(calls) <= _LEAF:
        code: Program = []
        for number, rules in calls:
            code += [(_EQUAL, 0, len(rules), number), *rules]
        return [*code, (_RETURN, 0, 0, _ALLOW)]
    middle = len(calls) // 2
    left, right = _search(calls[:middle]), _search(calls[middle:])
    return [(_AT_LEAST, len(left), 0, calls[middle][0]), *left, *right]


def _of_architecture(architecture: int, ruled: Mapping[str, tuple[Rule, ...]]) -> Program:
    calls = []
    for name, rules in ruled.items():
        number = {**NUMBERS, **PRETENDED}[name][_COLUMNS[architecture]]
        if number is not None:
            code = [instruction for rule in rules for instruction in _rule(rule)]
            always = any(not (rule.equal or rule.bits or rule.outside) for rule in rules)
            calls.append((number, code if always else [*code, (_RETURN, 0, 0, _ALLOW)]))
    start: Program = [(_LOAD, 0, 0, _NUMBER)]
    if architecture == _X86_64:
        start += [(_AT_LEAST, 0, 1, _FIRST_OF_X32), _answer(ENOSYS)]
    return [*start, *_search(sorted(calls))]


@functools.cache
def program(machine: str, *, pretending: bool = False) -> bytes:
    """The filter for ``machine`` (as :func:`os.uname` says it), as an array of struct sock_filter.

    ``pretending``: another one, which answers changes of owner and of user with success, without making them.

    Raises OSError for a machine whose numbers are not known.
    """
    if machine not in _ARCHITECTURES:
        raise OSError(ENOSYS, f"no system call numbers known for the architecture {machine}")
    ruled = dict.fromkeys(PRETENDED, (Rule(0),)) if pretending else RULES
    code: Program = [_answer(ENOSYS)]  # calls of another architecture
    for architecture in reversed(_ARCHITECTURES[machine]):
        body = _of_architecture(architecture, ruled)
        code = [(_EQUAL, 0, len(body), architecture), *body, *code]
    code = [(_LOAD, 0, 0, _ARCHITECTURE), *code]
    if any(max(if_true, if_false) > 255 for _, if_true, if_false, _ in code):
        raise ValueError("a jump is too long for the filter's format")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


@functools.cache
def prepare(*, pretending: bool = False) -> tuple[bytes, ctypes.Array]:
    """The filter of this machine as the kernel wants it, and the buffer that it points to."""
    code = program(linux.MACHINE, pretending=pretending)
    buffer = ctypes.create_string_buffer(code, len(code))
    return struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer)), buffer  # struct sock_fprog


def install(*, pretending: bool = False) -> None:
    """Filter this process and all that it will start, for good. Needs CAP_SYS_ADMIN in its user namespace."""
    header, _ = prepare(pretending=pretending)
    number = _SYSTEM_CALL[linux.MACHINE]
    for flags in (_KEEP_SPECULATION, 0):
        try:
            linux.system_call(number, "seccomp", _SET_MODE_FILTER, flags, header)
        except OSError as error:
            if error.errno == EINVAL and flags:
                continue  # a kernel from before the flag
            raise
        return
