"""A command in a container that is talked to."""

from __future__ import annotations

import time

import anyio

from pytest_harbor.sandboxes.api import KILLED, ExecResult, PipedProcess
from pytest_harbor.sandboxes.docker import endings
from pytest_harbor.sandboxes.docker.command_output import CommandOutput
from pytest_harbor.sandboxes.docker.exec import Connection, ExecCall
from pytest_harbor.sandboxes.docker.life import Life


class PipedCommand(PipedProcess):
    """A command that has begun; ``said`` is where ``output`` puts its standard output."""

    def __init__(
        self,
        life: Life,
        call: ExecCall,
        connection: Connection,
        output: CommandOutput,
        said: bytearray,
    ) -> None:
        self._life = life
        self._call = call
        self._connection = connection
        self._output = output
        self._said = said
        self._begun = time.monotonic()
        self._result: ExecResult | None = None

    async def receive(self) -> bytes:
        stream = self._output.stream
        while not self._said and stream.exit_code is None:
            data = await self._connection.receive()
            if not data:
                stream.flush()
                break
            stream.feed(data)
        said = bytes(self._said)
        self._said.clear()
        return said

    async def send(self, data: bytes) -> None:
        await self._connection.send(data)

    async def wait(self) -> ExecResult:
        if self._result is None:
            while await self.receive():
                pass
            code = self._output.stream.exit_code
            if code is None:
                code = await endings.exit_code(self._life, self._connection.exec_id)
            self._result = self._output.result(code, time.monotonic() - self._begun)
        return self._result

    async def kill(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                if self._output.stream.exit_code is None:
                    await endings.kill(self._life, self._call, self._output.stream)
                    self._result = self._output.result(
                        KILLED, time.monotonic() - self._begun
                    )
            finally:
                self._connection.close()
                self._output.close()
