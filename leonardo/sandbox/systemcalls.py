"""Which system calls a sandbox may not make, and why; :mod:`leonardo.sandbox.seccomp` turns this into a filter.

The measure is what a Docker container without privileges allows: tasks are written for that. What the kernel's own
checks forbid anyway (loading modules, setting the clock) is listed too, so that a fault in such a check is no way out.
"""

from errno import EAFNOSUPPORT, ENOSYS, EPERM, EPROTONOSUPPORT

NUMBERS: dict[str, tuple[int | None, int | None, int | None]] = {
    "acct": (163, 51, 89),
    "add_key": (248, 286, 217),
    "bpf": (321, 357, 280),
    "clock_settime": (227, 264, 112),
    "clock_settime64": (None, 404, None),
    "clone": (56, 120, 220),
    "clone3": (435, 435, 435),
    "delete_module": (176, 129, 106),
    "finit_module": (313, 350, 273),
    "fsconfig": (431, 431, 431),
    "fsmount": (432, 432, 432),
    "fsopen": (430, 430, 430),
    "fspick": (433, 433, 433),
    "init_module": (175, 128, 105),
    "io_uring_enter": (426, 426, 426),
    "io_uring_register": (427, 427, 427),
    "io_uring_setup": (425, 425, 425),
    "ioperm": (173, 101, None),
    "iopl": (172, 110, None),
    "kexec_file_load": (320, None, 294),
    "kexec_load": (246, 283, 104),
    "keyctl": (250, 288, 219),
    "lookup_dcookie": (212, 253, 18),
    "mount": (165, 21, 40),
    "mount_setattr": (442, 442, 442),
    "move_mount": (429, 429, 429),
    "open_by_handle_at": (304, 342, 265),
    "open_tree": (428, 428, 428),
    "open_tree_attr": (467, 467, 467),
    "perf_event_open": (298, 336, 241),
    "pivot_root": (155, 217, 41),
    "prlimit64": (302, 340, 261),
    "quotactl": (179, 131, 60),
    "quotactl_fd": (443, 443, 443),
    "reboot": (169, 88, 142),
    "request_key": (249, 287, 218),
    "sched_setaffinity": (203, 241, 122),
    "sched_setattr": (314, 351, 274),
    "sched_setparam": (142, 154, 118),
    "sched_setscheduler": (144, 156, 119),
    "setns": (308, 346, 268),
    "setpriority": (141, 97, 140),
    "settimeofday": (164, 79, 170),
    "socket": (41, 359, 198),
    "socketcall": (None, 102, None),
    "socketpair": (53, 360, 199),
    "stime": (None, 25, None),
    "swapoff": (168, 115, 225),
    "swapon": (167, 87, 224),
    "syslog": (103, 103, 116),
    "umount": (None, 22, None),
    "umount2": (166, 52, 39),
    "unshare": (272, 310, 97),
    "userfaultfd": (323, 374, 282),
}
"""Name -> number on x86-64, on 32-bit x86 and on 64-bit ARM (``asm/unistd_64.h`` and the like)."""


class Rule:
    """A call is answered with ``error`` if all that is said of its arguments holds; of those, the low halves count.

    Attributes:
        error: the error number.
        equal: (argument, value): only where it is this.
        bits: (argument, mask): only where it has one of these bits.
        outside: (argument, values): only where it is none of these.
    """

    def __init__(
        self,
        error: int = EPERM,
        *,
        equal: tuple[tuple[int, int], ...] = (),
        bits: tuple[int, int] | None = None,
        outside: tuple[int, tuple[int, ...]] | None = None,
    ) -> None:
        self.error, self.equal, self.bits, self.outside = error, equal, bits, outside


_NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_NEW_TIME_NAMESPACE = 0x80  # of unshare only: in clone it is part of the signal number
_FAMILIES = (1, 2, 10, 16)  # unix, IPv4, IPv6, netlink
_NETLINK, _NETLINK_PROTOCOLS = 16, (0, 4, 15)  # routes, socket diagnosis, device events
_OF_PROCESS_1 = (Rule(equal=((0, 1),)),)

_NEVER = """
    bpf perf_event_open userfaultfd
    keyctl add_key request_key
    kexec_load kexec_file_load init_module finit_module delete_module
    settimeofday clock_settime clock_settime64 stime
    swapon swapoff syslog acct iopl ioperm quotactl quotactl_fd lookup_dcookie open_by_handle_at
    reboot
    mount umount umount2 pivot_root move_mount mount_setattr open_tree open_tree_attr fsopen fsconfig fsmount fspick
    setns
"""
"""By line: code that runs in the kernel or watches it, asked for by next to no task; keys, which are the host's;
kernels and modules; the clock; what else is the machine's; a restart, which would end the sandbox and look like a
failure of the machine; mounts (a new tmpfs has no bound, and /proc and /dev are to stay as they are); namespaces."""

RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(_NEVER.split(), (Rule(),)),
    # what io_uring starts passes no filter; libraries take "not there" for an answer
    **dict.fromkeys(("io_uring_setup", "io_uring_enter", "io_uring_register"), (Rule(ENOSYS),)),
    # a nested user namespace has every capability again
    "unshare": (Rule(bits=(0, _NEW_NAMESPACES | _NEW_TIME_NAMESPACE)),),
    "clone": (Rule(bits=(0, _NEW_NAMESPACES)),),
    "clone3": (Rule(ENOSYS),),  # its flags are in memory, where a filter cannot look; libraries then use clone
    # families without namespaces (vsock leads to the machine's host), raw packets, ciphers, modules loaded on demand
    "socket": (
        Rule(EAFNOSUPPORT, outside=(0, _FAMILIES)),
        # firewalls and the like; to su and sudo the error says that this kernel keeps no audit log
        Rule(EPROTONOSUPPORT, equal=((0, _NETLINK),), outside=(2, _NETLINK_PROTOCOLS)),
    ),
    "socketpair": (Rule(EAFNOSUPPORT, outside=(0, (1,))),),
    "socketcall": (Rule(ENOSYS, equal=((0, 1),)), Rule(ENOSYS, equal=((0, 8),))),  # 32-bit socket and socketpair
    # the limits, processors and priority of the sandbox's process 1 are not the sandbox's to set
    "prlimit64": _OF_PROCESS_1,
    **dict.fromkeys(("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"), _OF_PROCESS_1),
    "setpriority": (Rule(equal=((0, 0), (1, 1))),),
}

PRETENDED: dict[str, tuple[int | None, int | None, int | None]] = {
    "chown": (92, 182, None),
    "chown32": (None, 212, None),
    "fchown": (93, 95, 55),
    "fchown32": (None, 207, None),
    "fchownat": (260, 298, 54),
    "lchown": (94, 16, None),
    "lchown32": (None, 198, None),
    "setfsgid": (123, 139, 152),
    "setfsgid32": (None, 216, None),
    "setfsuid": (122, 138, 151),
    "setfsuid32": (None, 215, None),
    "setgid": (106, 46, 144),
    "setgid32": (None, 214, None),
    "setgroups": (116, 81, 159),
    "setgroups32": (None, 206, None),
    "setregid": (114, 71, 143),
    "setregid32": (None, 204, None),
    "setresgid": (119, 170, 149),
    "setresgid32": (None, 210, None),
    "setresuid": (117, 164, 147),
    "setresuid32": (None, 208, None),
    "setreuid": (113, 70, 145),
    "setreuid32": (None, 203, None),
    "setuid": (105, 23, 146),
    "setuid32": (None, 213, None),
}
"""Changes of owner and of user, which a namespace of one id refuses to everybody. A set-up may be told that they went
well, so that dpkg and scripts go on; all stays root's. Name -> numbers as above."""
