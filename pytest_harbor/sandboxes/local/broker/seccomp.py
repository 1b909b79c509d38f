"""Which system calls a sandbox does without, as a filter for the kernel.

A capability that was given up comes back in a user namespace of one's own, and with it
everything that the kernel only asks that namespace about: to mount the host's control
groups, for one. So no namespace can be made in a sandbox and nothing mounted. What no
namespace keeps apart is refused too: keyrings, BPF, performance counters; and io_uring and
userfaultfd, which no program needs and many a way into the kernel went through. The
container engines' own filters refuse the same. ``ptrace`` stays, for debuggers.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import Final

CLONE3: Final = "clone3"
# Without a flag for a namespace these are threads, processes and descriptors.
_BY_FLAGS: Final = ("clone", "unshare")
_NAMESPACES: Final = 0x7E020000  # all of sched.h's CLONE_NEW*, but for
_TIME_NAMESPACE: Final = 0x80  # which clone takes for a part of the exit signal

# The same numbers on every architecture: asm-generic/unistd.h.
_SINCE_5_1: Final = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    CLONE3: 435,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
}
_X86_64: Final = {
    "clone": 56,
    "pivot_root": 155,
    "mount": 165,
    "umount2": 166,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "open_by_handle_at": 304,
    "setns": 308,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    **_SINCE_5_1,
}
_AARCH64: Final = {
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "quotactl": 60,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "clone": 220,
    "perf_event_open": 241,
    "open_by_handle_at": 265,
    "setns": 268,
    "finit_module": 273,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
    **_SINCE_5_1,
}


@dataclass(frozen=True)
class Architecture:
    """How the kernel names an architecture, and its numbers of the calls refused."""

    audit: int
    numbers: dict[str, int]
    other_abi: int | None = None
    """Numbers from here on are those of a second set of calls, all refused."""


ARCHITECTURES: Final = {
    "x86_64": Architecture(0xC000003E, _X86_64, other_abi=0x40000000),
    "aarch64": Architecture(0xC00000B7, _AARCH64),
}

# linux/bpf_common.h and linux/seccomp.h
_LOAD: Final = 0x20
_IS_EQUAL: Final = 0x15
_IS_AT_LEAST: Final = 0x35
_HAS_BITS: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000 | errno.EPERM
# What a kernel without it says: the C library then takes clone, whose flags can be seen.
_UNKNOWN: Final = 0x00050000 | errno.ENOSYS
_NUMBER_AT: Final = 0  # in struct seccomp_data
_ARCHITECTURE_AT: Final = 4
_ARGUMENT_AT: Final = 16  # the first one's low half: both are little-endian


def program(machine: str) -> bytes | None:
    """The filter, as an array of ``struct sock_filter``.

    Args:
        machine: As ``uname -m`` calls it.

    Returns:
        ``None`` for an architecture whose numbers are not known here. Programs for
        another one than the kernel's own (32-bit ones) cannot run under the filter.
    """
    found = ARCHITECTURES.get(machine)
    if found is None:
        return None
    lines = [
        _line(_LOAD, _ARCHITECTURE_AT),
        _line(_IS_EQUAL, found.audit, then=1),
        _line(_RETURN, _REFUSE),
        _line(_LOAD, _NUMBER_AT),
    ]
    if found.other_abi is not None:
        lines += [
            _line(_IS_AT_LEAST, found.other_abi, otherwise=1),
            _line(_RETURN, _REFUSE),
        ]
    for name, number in found.numbers.items():
        if name in _BY_FLAGS:
            flags = _NAMESPACES | (_TIME_NAMESPACE if name == "unshare" else 0)
            lines += [
                _line(_IS_EQUAL, number, otherwise=4),
                _line(_LOAD, _ARGUMENT_AT),
                _line(_HAS_BITS, flags, otherwise=1),
                _line(_RETURN, _REFUSE),
                _line(_RETURN, _ALLOW),
            ]
        else:
            answer = _UNKNOWN if name == CLONE3 else _REFUSE
            lines += [
                _line(_IS_EQUAL, number, otherwise=1),
                _line(_RETURN, answer),
            ]
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def _line(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction; ``then`` and ``otherwise`` are how many to leave out."""
    return struct.pack("=HBBI", code, then, otherwise, value)
