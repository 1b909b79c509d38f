"""The start of bubblewrap, and what can be left of one that was cut short.

Bubblewrap's outer process asks to die with its parent just before it lets the inner one go
on. When the outer one ends before that (killed, or with nobody left to read its status), the
inner one waits for ever: such are killed when the broker adopts them, or by a sweep when the
broker is gone as well.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_harbor.sandboxes.local.broker import kernel, processes

NAME = "harbor-broker"
"""What the broker and all its forks are called in the process table."""
BWRAP = "bwrap"
# Not SIGPIPE: bubblewrap would die of it in one place more, and strand its inner process.
_DEFAULTS = (signal.SIGINT, signal.SIGXFSZ)
_MAX_LINE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Launched:
    """A bubblewrap that was started, and the pipes from it."""

    pid: int
    said: int
    """Its standard output and error, and the holder's."""
    status: int
    """Its JSON."""


def launch(argv: Sequence[str]) -> Launched:
    """Start it. Raises OSError: it cannot be run."""
    said, saying = os.pipe2(os.O_CLOEXEC)
    status, telling = os.pipe2(os.O_CLOEXEC)
    options = ["--json-status-fd", str(telling)]
    inherited = [telling]
    if kernel.FILTER is not None:
        # One of its own for each start: they would share the position in the file.
        program = os.memfd_create("seccomp", os.MFD_CLOEXEC)
        os.write(program, kernel.FILTER)
        os.lseek(program, 0, os.SEEK_SET)
        options += ["--seccomp", str(program)]
        inherited.append(program)
    actions = [
        (os.POSIX_SPAWN_DUP2, saying, 1),
        (os.POSIX_SPAWN_DUP2, saying, 2),
    ]
    try:
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)
        # Not forked: that takes ten times as long.
        pid = os.posix_spawn(
            argv[0],
            [argv[0], *options, *argv[1:]],
            {},
            file_actions=actions,
            setsigdef=_DEFAULTS,
        )
    except OSError:
        os.close(said)
        os.close(status)
        raise
    finally:
        for descriptor in (saying, *inherited):
            os.close(descriptor)
    return Launched(pid, said, status)


def adopted(proc: int, broker: int, known: set[int]) -> list[processes.Process]:
    """Inner processes of bubblewraps that ended while they set a sandbox up."""
    return [
        process
        for process in processes.table(proc).values()
        if process.parent == broker
        and process.pid not in known
        and processes.name(proc, process.pid) == BWRAP
    ]


def leftovers(proc: int, mark: str) -> list[processes.Process]:
    """Processes of bubblewrap whose command line has ``mark`` and whose broker is gone."""
    return [
        process
        for process in processes.table(proc).values()
        if processes.name(proc, process.pid) == BWRAP
        and processes.name(proc, process.parent) not in (BWRAP, NAME)
        and mark.encode()
        in processes.said(proc, process.pid, "cmdline", _MAX_LINE_BYTES)
    ]
