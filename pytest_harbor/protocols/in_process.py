"""Serve an ASGI application in this process's event loop, on a socket of its own.

This module imports uvicorn inside functions.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import anyio

from pytest_harbor.protocols.extras import needs

if TYPE_CHECKING:
    from starlette.applications import Starlette

LOOPBACK: Final = "127.0.0.1"
_STOP_SECONDS: Final = 5.0


class InProcessServer:
    """A server that :meth:`run` runs, in a task group of the caller.

    Connections are taken from the start; they are answered as soon as ``run`` does.

    Raises:
        MissingExtra: uvicorn is not installed.
        OSError: there is no port.
    """

    def __init__(self, app: Starlette, *, host: str = LOOPBACK) -> None:
        with needs("agents", "serving an agent"):
            import uvicorn

        class Quiet(uvicorn.Server):
            """Signals are the process's own, not the server's."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        config = uvicorn.Config(
            app,
            log_level="warning",
            log_config=None,
            access_log=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server: Any = Quiet(config)
        self._socket = socket.create_server((host, 0), backlog=128)
        self._ended = anyio.Event()
        self._is_running = False
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"

    async def run(self) -> None:
        """Serve until :meth:`stop`, or until cancelled; then the socket is closed."""
        if self._server.should_exit:
            return
        self._is_running = True
        async with anyio.create_task_group() as group:
            group.start_soon(self._serve)
            try:
                await self._ended.wait()
            finally:
                self._server.should_exit = True

    async def _serve(self) -> None:
        # Cancelled half-way it would leave its connections open.
        with anyio.CancelScope(shield=True):
            try:
                await self._server.serve(sockets=[self._socket])
            finally:
                self._socket.close()
                self._ended.set()

    async def stop(self) -> None:
        """End it; open connections are closed. May be called again."""
        self._server.should_exit = True
        if not self._is_running:
            self._socket.close()
            return
        with anyio.move_on_after(_STOP_SECONDS):
            await self._ended.wait()
