"""The start of bubblewrap, so that nothing of it outlives the broker.

Bubblewrap asks to die with its parent only after a while, and its inner process, which
waits for the outer one until then, would wait for ever. So its death is tied to ours before
it runs, and ``leftovers`` finds what a broker that was killed at the wrong moment left.
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
_CANNOT_RUN = 127
_DEFAULTS = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
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
    """Start it; what goes wrong is said on the pipe. Raises OSError: no process."""
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
    broker = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            _become([argv[0], *options, *argv[1:]], saying, inherited, broker)
    except OSError:
        os.close(said)
        os.close(status)
        raise
    finally:
        for descriptor in (saying, *inherited):
            os.close(descriptor)
    return Launched(pid, said, status)


def _become(
    argv: list[str], saying: int, inherited: Sequence[int], broker: int
) -> None:
    try:
        signal.set_wakeup_fd(-1)
        kernel.die_with_parent(signal.SIGKILL)
        if os.getppid() != broker:
            return  # it ended before the kernel was told
        for number in _DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(saying, 1)
        os.dup2(saying, 2)
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)
        os.execve(argv[0], argv, {})  # noqa: S606  # a shell is what it starts
    except OSError as error:
        os.write(saying, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(_CANNOT_RUN)  # a fork must never return


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
        and mark.encode() in _command_line(proc, process.pid)
    ]


def _command_line(proc: int, pid: int) -> bytes:
    try:
        file = os.open(f"{pid}/cmdline", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return b""
    with os.fdopen(file, "rb") as line:
        try:
            return line.read(_MAX_LINE_BYTES)
        except OSError:
            return b""
