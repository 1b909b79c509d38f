"""Serve an ASGI application on a real socket of this machine, in a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from anyio.from_thread import start_blocking_portal


@contextlib.contextmanager
def serving(app) -> Iterator[str]:
    """The base URL of ``app`` while the block runs."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
        assert not thread.is_alive(), "the test server did not stop"


class Servers:
    """Any number of applications, each on a socket of its own, all in one thread."""

    def __init__(self, portal) -> None:
        self._portal = portal
        self._running: list[tuple[uvicorn.Server, socket.socket]] = []

    def start(self, app) -> str:
        """Serve ``app`` until the end of the block; returns its base URL."""
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        self._portal.start_task_soon(server.serve, [listening])
        self._running.append((server, listening))
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    def stop(self) -> None:
        for server, _ in self._running:
            server.should_exit = True


@contextlib.contextmanager
def many_servers() -> Iterator[Servers]:
    """A :class:`Servers`; it is quicker than a thread each, and stops them together."""
    with start_blocking_portal() as portal:
        servers = Servers(portal)
        try:
            yield servers
        finally:
            servers.stop()
    for _, listening in servers._running:
        listening.close()
