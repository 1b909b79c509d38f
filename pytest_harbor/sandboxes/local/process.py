"""A command of a local sandbox while it runs."""

from __future__ import annotations

import contextlib
import socket

import anyio

from pytest_harbor.errors import SandboxLost
from pytest_harbor.sandboxes.api import ExecResult, Process
from pytest_harbor.sandboxes.local.broker import wire
from pytest_harbor.sandboxes.local.client import BrokerClient

KILL_SECONDS = 20.0
"""How long the broker may take to kill a tree; it gives up after 10."""


class LocalProcess(Process):
    """A command under way: its channel, and its result once it is known."""

    def __init__(self, broker: BrokerClient, channel: socket.socket) -> None:
        self._broker = broker
        self._channel = channel
        self._lock = anyio.Lock()
        self._result: ExecResult | None = None

    async def started(self) -> None:
        """Wait for the announcement. Raises SandboxLost, UnsupportedByProvider."""
        async with self._lock:
            await self._broker.reply(self._channel)

    async def wait(self) -> ExecResult:
        async with self._lock:
            if self._result is None:
                if self._channel.fileno() < 0:
                    raise SandboxLost("the command's sandbox was stopped")
                message = await self._broker.reply(self._channel)
                self._result = ExecResult(
                    exit_code=message.get("status"),
                    stdout=message["stdout"],
                    stderr=message["stderr"],
                    timed_out="timed_out" in message,
                    truncated=message["truncated"],
                    seconds=message["seconds"],
                )
                self.close()
            return self._result

    async def kill(self) -> None:
        if self._result is not None:
            return
        with contextlib.suppress(OSError):
            wire.send(self._channel, {"op": "kill"})
        await self.wait()

    def close(self) -> None:
        """Let go of the command; one that still runs is killed."""
        self._channel.close()
