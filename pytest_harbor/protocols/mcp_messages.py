"""Messages to and from an MCP server, over a line that is ours: one in, one out at a time.

The SDK's session reads and writes streams of messages; what carries them is its transports'
business, or ours. A message that cannot be sent answers itself here with its cause, so that
whoever sent it hears at once and the session goes on.

This module imports mcp; import it inside functions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)

from pytest_harbor.errors import ProtocolError, ServerUnreachable
from pytest_harbor.protocols.mcp_wire import Peer

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

Send = Callable[[bytes], Awaitable[None]]
"""Sends a message as JSON, on one line. Raises ProtocolError."""


def parsed(text: str | bytes) -> SessionMessage:
    """The message that a text is. Raises ValueError."""
    return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))


@asynccontextmanager
async def message_streams(
    peer: Peer, received: AsyncGenerator[SessionMessage, None], send: Send
) -> AsyncIterator[TransportStreams]:
    """The SDK's streams. ``received`` ends, or raises ProtocolError, with the session.

    Requests are sent at once, so that none waits for another's; everything else in order.
    """
    incoming, to_session = anyio.create_memory_object_stream[
        SessionMessage | Exception
    ]()
    from_session, outgoing = anyio.create_memory_object_stream[SessionMessage]()

    async def listen() -> None:
        lost = ServerUnreachable(f"{peer.place} ended the session", url=peer.url)
        try:
            async with aclosing(received):
                async for message in received:
                    await incoming.send(message)
        except ProtocolError as error:
            peer.lost = error
        except anyio.BrokenResourceError:
            return  # nobody listens any more
        peer.lost = peer.lost or lost
        incoming.close()

    async def forward() -> None:
        async for message in outgoing:
            if isinstance(message.message, JSONRPCRequest):
                tasks.start_soon(deliver, message)
            else:
                await deliver(message)

    async def deliver(message: SessionMessage) -> None:
        try:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await send(text.encode())
        except ProtocolError as error:
            if not isinstance(message.message, JSONRPCRequest):
                return
            why = ErrorData(code=INTERNAL_ERROR, message=str(error), data=error)
            answer = JSONRPCError(jsonrpc="2.0", id=message.message.id, error=why)
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await incoming.send(SessionMessage(answer))

    async with (
        incoming,
        to_session,
        from_session,
        outgoing,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listen)
        tasks.start_soon(forward)
        yield to_session, from_session
        tasks.cancel_scope.cancel()
