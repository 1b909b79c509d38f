"""A command in a container that runs on while its sandbox is used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import anyio

from pytest_harbor.sandboxes.api import KILLED, ExecResult, Process
from pytest_harbor.sandboxes.docker import endings
from pytest_harbor.sandboxes.docker.command_output import CommandOutput
from pytest_harbor.sandboxes.docker.exec import DRAIN_SECONDS, Connection, ExecCall
from pytest_harbor.sandboxes.docker.life import Life
from pytest_harbor.sandboxes.docker.stream import ExecStream

_POLL_SECONDS = 0.05


class SpawnedCommand(Process):
    """A command that has begun. A thread takes its output, so that it never blocks.

    ``note`` is given its stream when it has ended, for what its wrapper told.
    """

    def __init__(
        self,
        life: Life,
        call: ExecCall,
        connection: Connection,
        output: CommandOutput,
        *,
        note: Callable[[ExecStream], None],
    ) -> None:
        self._life = life
        self._call = call
        self._connection = connection
        self._output = output
        self._note = note
        self._begun = time.monotonic()
        self._killed = False
        self._result: ExecResult | None = None
        self._thread = threading.Thread(
            target=self._take_output, name=f"{life.name} output", daemon=True
        )
        self._thread.start()

    def _take_output(self) -> None:
        stream = self._output.stream
        try:
            while stream.exit_code is None and (
                data := self._connection.receive_blocking()
            ):
                stream.feed(data)
        finally:
            stream.flush()
            self._connection.close()
            self._output.close()

    async def wait(self) -> ExecResult:
        await self._output_taken()
        if self._result is None:
            code = self._output.stream.exit_code
            if code is None:
                code = await self._exit_code()
            self._note(self._output.stream)
            self._result = self._output.result(code, time.monotonic() - self._begun)
        return self._result

    async def _output_taken(self) -> None:
        # An event would have to be set from a thread that outlives the event loop.
        while self._thread.is_alive():  # noqa: ASYNC110
            await anyio.sleep(_POLL_SECONDS)

    async def _exit_code(self) -> int:
        if self._killed:
            return KILLED
        return await endings.exit_code(self._life, self._connection.exec_id)

    async def kill(self) -> None:
        with anyio.CancelScope(shield=True):
            self._killed = True
            await endings.kill(self._life, self._call, self._output.stream)
            with anyio.move_on_after(DRAIN_SECONDS):
                await self._output_taken()
            self._connection.hang_up()
