"""Who made a thing, and whether that process still lives.

Everything that can outlive its maker (containers, temporary folders) carries an owner:
process ID, start time and the place where that ID has a meaning. A sweep removes what dead
owners left. Start times tell a reused process ID from the first one.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

_STATE_FIELD = 0  # of /proc/<pid>/stat after the command name: see proc(5)
_START_TIME_FIELD = 19


@dataclass(frozen=True)
class Owner:
    """A process, named so that it can be recognised later."""

    place: str
    """Boot and PID namespace; process IDs mean nothing elsewhere."""
    pid: int
    start_ticks: int

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        return cls(_place(), os.getpid(), _stat(os.getpid())[1])

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Read what :meth:`__str__` wrote; ``None`` when it is something else."""
        place, _, rest = text.rpartition("/")
        pid, _, ticks = rest.partition(":")
        if not (place and pid.isdigit() and ticks.isdigit()):
            return None
        return cls(place, int(pid), int(ticks))

    def __str__(self) -> str:
        return f"{self.place}/{self.pid}:{self.start_ticks}"

    @property
    def is_dead(self) -> bool:
        """True when the process is known to be gone; a zombie counts as gone.

        A process of another machine or PID namespace cannot be judged from here
        and is never called dead, but one of an earlier boot of this machine is.
        """
        boot, _, namespace = self.place.partition("/")
        here_boot, _, here_namespace = _place().partition("/")
        if namespace != here_namespace:
            return False
        if boot != here_boot:
            return True
        try:
            state, start_ticks = _stat(self.pid)
        except (OSError, ValueError, IndexError):  # or it may not be looked at
            return not _exists(self.pid)
        return state in "ZX" or start_ticks != self.start_ticks


def _stat(pid: int) -> tuple[str, int]:
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    values = text.rpartition(")")[2].split()
    return values[_STATE_FIELD], int(values[_START_TIME_FIELD])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # or it is somebody else's
    return True


@functools.cache
def _place() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    machine = Path("/etc/machine-id")
    name = machine.read_text().strip() if machine.is_file() else os.uname().nodename
    namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    return f"{boot}/{name or os.uname().nodename}-{namespace}"
