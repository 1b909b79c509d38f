"""Finding and killing whole process trees, seen from the host.

The host's ``/proc`` is opened before a sandbox is joined and used through that
descriptor, so the tree is the kernel's and not what a sandbox shows.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_GIVE_UP_SECONDS = 5.0
_PAUSE_SECONDS = 0.002


@dataclass(frozen=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    state: str
    session: int
    start_ticks: int

    @property
    def is_dead(self) -> bool:
        """True for a zombie: nothing of it runs any more."""
        return self.state in "ZX"


def open_proc() -> int:
    """A descriptor of this PID namespace's ``/proc``."""
    return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def name(proc: int, pid: int) -> str:
    """The short name of a process, empty when it is gone."""
    return said(proc, pid, "comm").decode(errors="replace").strip()


def look(proc: int, pid: int) -> Process | None:
    """One process, or ``None`` when it is gone."""
    values = said(proc, pid, "stat").rpartition(b")")[2].split()
    if len(values) < 20:
        return None
    state, parent, _, session = values[:4]
    return Process(
        pid, int(parent), state.decode(), int(session), start_ticks=int(values[19])
    )


def said(proc: int, pid: int, what: str, max_bytes: int = 4096) -> bytes:
    """What ``/proc`` says of a process; nothing when it is gone, or goes just now."""
    try:
        descriptor = os.open(f"{pid}/{what}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return b""
    try:
        return os.read(descriptor, max_bytes)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def table(proc: int) -> dict[int, Process]:
    """All processes that can be seen."""
    found = (look(proc, int(name)) for name in os.listdir(proc) if name.isdecimal())
    return {process.pid: process for process in found if process is not None}


def descendants(processes: dict[int, Process], top: int) -> list[Process]:
    """What descends from ``top``, itself not included."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    pending = [top]
    while pending:
        for child in children.get(pending.pop(), ()):
            found.append(child)
            pending.append(child.pid)
    return found


def kill_all(find: Callable[[], Iterable[Process]]) -> bool:
    """Kill what ``find`` finds until it finds nothing alive; False after 5 seconds.

    All are stopped before the first is killed, so that none can replace another.
    """
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    stopped: set[int] = set()
    while time.monotonic() < deadline:
        alive = [process for process in find() if not process.is_dead]
        if not alive:
            return True
        fresh = [process for process in alive if process.pid not in stopped]
        for process in fresh:
            send(process.pid, signal.SIGSTOP)
            stopped.add(process.pid)
        if fresh:
            continue
        for process in alive:
            send(process.pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)
    return False


def send(pid: int, signal_number: int) -> None:
    """Signal a process that may be gone."""
    try:
        os.kill(pid, signal_number)
    except (ProcessLookupError, PermissionError):
        return
