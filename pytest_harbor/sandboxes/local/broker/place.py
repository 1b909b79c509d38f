"""What the broker knows of one sandbox."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from pytest_harbor.sandboxes.local.broker import forks


@dataclass
class Place:
    """A sandbox, or (without bubblewrap) the container that we are in."""

    channel: socket.socket
    namespaces: int
    bwrap: int = 0
    said: int = -1
    """Pipe with what bubblewrap and the holder print until it is ready."""
    status: int = -1
    """Pipe with bubblewrap's JSON."""
    init_pid: int | None = None
    init_pidfd: int | None = None
    text: bytes = b""
    is_ready: bool = False
    is_stopping: bool = False
    forked: set[int] = field(default_factory=set)
    """Processes that work in it, or wait for work."""
    runner: forks.Fork | None = None
    """Watches over commands, and has nothing to do right now."""
    mover: forks.Fork | None = None
    """Moves files, and has nothing to do right now."""

    @property
    def sandbox(self) -> forks.Sandbox:
        """What a process must know to work in it."""
        return forks.Sandbox(self.namespaces, self.init_pid, self.init_pidfd)
