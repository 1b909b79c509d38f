"""A command of a local sandbox that is talked to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from pytest_harbor.sandboxes.api import ExecResult, PipedProcess
from pytest_harbor.sandboxes.local.process import KILL_SECONDS, LocalProcess

_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Pipes:
    """Standard input and output of a command: our ends, and for a moment its own."""

    sending: int
    receiving: int
    _own: tuple[int, int]

    @classmethod
    def open(cls) -> Pipes:
        """Make both. Ours do not block."""
        stdin, sending = os.pipe2(os.O_CLOEXEC)
        receiving, stdout = os.pipe2(os.O_CLOEXEC)
        for ours in (sending, receiving):
            os.set_blocking(ours, False)
        for its in (stdin, stdout):
            os.fchmod(its, 0o666)  # another user may open /dev/stdin again
        return cls(sending, receiving, (stdin, stdout))

    @contextmanager
    def of_command(self) -> Iterator[Sequence[int]]:
        """The command's ends, to be handed on; ours are the only ones then."""
        try:
            yield self._own
        finally:
            for descriptor in self._own:
                os.close(descriptor)

    def close(self) -> None:
        """Close our ends; whoever waits for one gets ClosedResourceError."""
        for ours in (self.sending, self.receiving):
            anyio.notify_closing(ours)
            os.close(ours)


class LocalPipedProcess(PipedProcess):
    """A command that has begun."""

    def __init__(self, process: LocalProcess, pipes: Pipes) -> None:
        self._process = process
        self._pipes: Pipes | None = pipes

    async def receive(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        while self._pipes is not None:
            try:
                return os.read(self._pipes.receiving, _CHUNK)
            except BlockingIOError:  # noqa: PERF203 - then it waits
                with suppress(anyio.ClosedResourceError):  # it was killed
                    await anyio.wait_readable(self._pipes.receiving)
        return b""

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        await anyio.lowlevel.checkpoint()
        while view:
            if self._pipes is None:
                raise BrokenPipeError
            try:
                view = view[os.write(self._pipes.sending, view[:_CHUNK]) :]
            except BlockingIOError:
                with suppress(anyio.ClosedResourceError):  # it was killed
                    await anyio.wait_writable(self._pipes.sending)

    async def wait(self) -> ExecResult:
        while await self.receive():
            pass
        return await self._process.wait()

    async def kill(self) -> None:
        with anyio.move_on_after(KILL_SECONDS, shield=True):
            try:
                await self._process.kill()
            finally:
                pipes, self._pipes = self._pipes, None
                if pipes is not None:
                    pipes.close()
