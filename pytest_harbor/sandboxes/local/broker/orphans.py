"""Finding what a sandbox without namespaces left when its broker was killed.

Its processes then belong to the container's first one, like any daemon, and an agent can
give them another name and an empty environment. What it cannot take off is what commands
are deprived of for good: privileges by ``execve``, capabilities, system calls.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pytest_harbor.sandboxes.local.broker import kernel, launch, processes

_MAX_STATUS_BYTES = 1024 * 1024
"""It names all groups of a process, of which there may be 65,536."""


@dataclass(frozen=True)
class Marks:
    """What the kernel will not let a process undo, from ``/proc/<pid>/status``."""

    no_new_privs: bool
    bounding: int
    """Capabilities that can still be had."""
    filters: int | None
    """Filters of system calls; ``None`` before Linux 5.9, which does not count them."""
    depth: int
    """Levels of PID namespaces below the one that is looked from."""

    @property
    def _is_deprived(self) -> bool:
        return self.no_new_privs and not self.bounding & ~kernel.KEPT_BITS

    def are_of_a_command(self, own: Marks) -> bool:
        """Whether a command has them, judged by those of a process like its broker."""
        if not self._is_deprived or self.depth != own.depth:
            return False
        if kernel.FILTER is None or self.filters is None or own.filters is None:
            return not own._is_deprived
        return self.filters > own.filters


def look(proc: int, pid: int) -> Marks | None:
    """The marks of a process, ``None`` when it is gone."""
    status = processes.said(proc, pid, "status", _MAX_STATUS_BYTES)
    return parse(status.decode(errors="replace")) if status else None


def parse(status: str) -> Marks:
    """Read a status file. What a kernel does not know of is not there."""
    values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    filters = values.get("Seccomp_filters")
    return Marks(
        no_new_privs=values.get("NoNewPrivs", "0").strip() == "1",
        bounding=int(values.get("CapBnd", "-1"), 16),
        filters=None if filters is None else int(filters),
        depth=len(values.get("NSpid", "").split()),
    )


def find(proc: int, since: int) -> list[processes.Process]:
    """Commands that began at ``since`` (clock ticks since boot) or later.

    What serves a sandbox with namespaces is deprived like the commands there. Its broker
    lives, and so it is no orphan.
    """
    own = look(proc, os.getpid())
    if own is None:
        return []
    table = processes.table(proc)
    return [
        process
        for process in table.values()
        if process.start_ticks >= since
        and process.pid != os.getpid()
        and _is_of_a_command(proc, process.pid, own)
        and not _is_broker(proc, table.get(process.parent), own)
    ]


def _is_of_a_command(proc: int, pid: int, own: Marks) -> bool:
    marks = look(proc, pid)
    return marks is not None and marks.are_of_a_command(own)


def _is_broker(proc: int, process: processes.Process | None, own: Marks) -> bool:
    """Its forks have its name, and no session of their own.

    A command can have both, but not the marks taken off.
    """
    return (
        process is not None
        and process.session == process.pid
        and processes.name(proc, process.pid) == launch.NAME
        and not _is_of_a_command(proc, process.pid, own)
    )
