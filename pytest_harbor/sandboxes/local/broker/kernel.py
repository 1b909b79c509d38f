"""The system calls that Python has no function for.

The C library is loaded once, before any sandbox is joined; none of these calls makes
it load anything more.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import Final

from pytest_harbor.sandboxes.local.broker import seccomp

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_SECCOMP = 22
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_SECCOMP_MODE_FILTER = 2

# linux/capability.h. What a container's root has by default, without MKNOD, NET_RAW and
# AUDIT_WRITE, which no task was seen to need and which reach past the sandbox.
KEPT_CAPABILITIES: Final = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "SYS_CHROOT": 18,
    "SETFCAP": 31,
}
KEPT_BITS = sum(1 << number for number in KEPT_CAPABILITIES.values())
_LAST_CAPABILITY = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
_DROPPED = [n for n in range(_LAST_CAPABILITY + 1) if not KEPT_BITS >> n & 1]


def _find_filter() -> bytes | None:
    program = seccomp.program(os.uname().machine)
    # A kernel that knows filters looks for one at the address given.
    _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, 0, 0, 0)
    return program if ctypes.get_errno() == errno.EFAULT else None


FILTER: Final = _find_filter()
"""What sandboxes are run under (see ``seccomp``); ``None`` where that is not possible."""


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, value: int, what: str) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), what)


def setns(descriptor: int, namespaces: int) -> None:
    """Join namespaces of the process behind a pidfd, all of them or none."""
    _check(_libc.setns(descriptor, namespaces), "setns")


def become_subreaper() -> None:
    """Become the parent of orphans among the descendants of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "subreaper")


def hide_memory() -> None:
    """Nobody without SYS_PTRACE may look into this process or take its descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0, "dumpable")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send a signal when the parent (its thread) ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number, "pdeathsig")


def drop_privileges() -> None:
    """Keep ``KEPT_CAPABILITIES`` at most, for good: nothing can be gained again.

    From here on ``FILTER`` holds too, so namespaces have to be joined before.
    """
    for number in _DROPPED:
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            # Without the right to drop it there must be none to drop.
            _check(-_libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0), "bounding set")
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    now = (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, now), "capget")
    allowed = (now[1] | now[4] << 32) & KEPT_BITS
    low, high = allowed & 0xFFFFFFFF, allowed >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    _check(_libc.capset(header, data), "capset")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "no_new_privs")
    if FILTER is not None:
        _install(FILTER)


def _install(program: bytes) -> None:
    lines = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(lines))
    where = ctypes.create_string_buffer(header, len(header))
    address = ctypes.addressof(where)
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address, 0, 0), "seccomp")


def rename_process(name: str) -> None:
    """Set what ``ps`` shows.

    An agent that runs ``pkill python`` means its own processes, not ours.
    """
    shown_short = ctypes.create_string_buffer(name.encode()[:15])
    _libc.prctl(_PR_SET_NAME, ctypes.addressof(shown_short), 0, 0, 0)
    values = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(values[45]), int(values[46])
    if 0 < start < end:
        shown = name.encode()[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, shown, len(shown))


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor that is not in ``keep``."""
    first = 0
    for descriptor in sorted(keep):
        if descriptor > first:
            _close_range(first, descriptor - 1)
        first = descriptor + 1
    _close_range(first, 0x7FFFFFFF)


def _close_range(first: int, last: int) -> None:
    try:
        close_range = _libc.close_range
    except AttributeError:  # glibc before 2.34, musl
        os.closerange(first, min(last + 1, 65536))
        return
    if close_range(ctypes.c_uint(first), ctypes.c_uint(last), ctypes.c_int(0)) < 0:
        os.closerange(first, min(last + 1, 65536))
