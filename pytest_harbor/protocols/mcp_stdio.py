"""MCP over standard input and output: one message a line, each way.

This module imports mcp; import it inside functions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from mcp.shared.message import SessionMessage

from pytest_harbor.errors import ProtocolError, ServerUnreachable
from pytest_harbor.protocols import connections
from pytest_harbor.protocols.mcp_messages import message_streams, parsed
from pytest_harbor.protocols.mcp_wire import Peer

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

    from pytest_harbor.protocols.mcp import Pipe


@asynccontextmanager
async def stdio(peer: Peer, pipe: Pipe) -> AsyncIterator[TransportStreams]:
    """A transport to the server behind ``pipe``, for :func:`.mcp_wire.open_session`."""
    lock = anyio.Lock()  # two lines at once would be none

    async def send(text: bytes) -> None:
        async with lock:
            try:
                await pipe.send(text + b"\n")
            except OSError as error:
                raise ServerUnreachable(
                    f"{peer.place} reads no more messages"
                ) from error

    async with message_streams(peer, _messages(peer, pipe), send) as both:
        yield both


async def _messages(peer: Peer, pipe: Pipe) -> AsyncGenerator[SessionMessage, None]:
    """What the server says. Lines that are no messages are noise, and common."""
    begun = bytearray()
    while data := await pipe.receive():
        begun += data
        if b"\n" in data:
            *lines, begun = begun.split(b"\n")
            for line in lines:
                try:
                    message = parsed(bytes(line))
                except ValueError:
                    continue
                yield message
        if len(begun) > connections.MAX_BODY_BYTES:
            raise ProtocolError(
                f"{peer.place}: a message is larger than "
                f"{connections.MAX_BODY_BYTES / 1024 / 1024:g} MiB"
            )
