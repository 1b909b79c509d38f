"""Talk to an MCP server over streamable HTTP (task-steps spec 11), SSE or stdio.

::

    async with mcp.connect("http://127.0.0.1:18765/mcp") as session:
        tools = await session.list_tools()
        result = await session.call_tool("email_search", {"query": "invoice"})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import anyio

from pytest_harbor.errors import MissingExtra, ProtocolError
from pytest_harbor.protocols.addresses import shown
from pytest_harbor.protocols.extras import needs

if TYPE_CHECKING:
    from pytest_harbor.protocols.mcp_wire import WireSession

HttpTransport: TypeAlias = Literal["streamable-http", "sse"]


@dataclass(frozen=True)
class Tool:
    """A tool that a server lists. The schemas are JSON schemas."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered. ``is_error``: the tool says that it failed."""

    text: str
    """Its text contents, joined by newlines."""
    structured: Any | None
    is_error: bool
    content: tuple[Mapping[str, Any], ...] = ()
    """Every content block, as JSON."""


class McpSession:
    """An open session. Made by :func:`connect`, and good for several tasks at once."""

    def __init__(self, wire: WireSession) -> None:
        self._wire = wire
        self.server_name: str | None = wire.server_name
        self.protocol_version: str = wire.protocol_version

    async def list_tools(self) -> tuple[Tool, ...]:
        """Every tool, over all pages, in the server's order; names may repeat.

        Raises:
            ServerRefused, ServerUnreachable, ProtocolError: as :func:`connect`.
        """
        return tuple(
            Tool(
                name=entry["name"],
                description=entry.get("description") or "",
                input_schema=entry["inputSchema"],
                output_schema=entry.get("outputSchema"),
            )
            for entry in await self._wire.tools()
        )

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float = 120.0,
    ) -> ToolResult:
        """Call a tool. A tool that fails is a result, never an exception.

        Raises:
            ServerRefused: the server refuses the call (some do for an unknown tool).
            ServerUnreachable, ProtocolError: as :func:`connect`.
        """
        result = await self._wire.call(name, dict(arguments or {}), timeout_seconds)
        content = tuple(result.get("content") or ())
        return ToolResult(
            text="\n".join(
                block["text"] for block in content if block.get("type") == "text"
            ),
            structured=result.get("structuredContent"),
            is_error=bool(result.get("isError")),
            content=content,
        )


class Pipe(Protocol):
    """Standard output and input of a server, from here."""

    async def receive(self) -> bytes:
        """The next bytes that it wrote; empty when no more come."""

    async def send(self, data: bytes) -> None:
        """Write all of it. Raises OSError."""


@asynccontextmanager
async def connect_pipe(
    pipe: Pipe, name: str, *, timeout_seconds: float = 30.0
) -> AsyncIterator[McpSession]:
    """As :func:`connect`, with a server that runs; messages call it ``name``.

    What ``pipe`` raises beside OSError comes out of the block.
    """
    with needs("agents", "talking to an MCP server"):
        from pytest_harbor.protocols import mcp_stdio, mcp_wire
    peer = mcp_wire.Peer(name)
    async with mcp_wire.open_session(
        peer, mcp_stdio.stdio(peer, pipe), timeout_seconds=timeout_seconds
    ) as wire:
        yield McpSession(wire)


@asynccontextmanager
async def connect(
    url: str,
    *,
    timeout_seconds: float = 30.0,
    headers: Mapping[str, str] | None = None,
    transport: HttpTransport = "streamable-http",
    address: str | None = None,
) -> AsyncIterator[McpSession]:
    """A session with the server at ``url``, initialized; ``timeout_seconds`` per request.

    ``address`` is the IP address of the URL's host, for a name that means another one here, or
    nothing. What the block raises comes out as it was raised.

    Raises:
        ServerUnreachable, ServerTimeout: no connection, no answer.
        ServerRefused: the server answers with an error.
        ProtocolError: what answers is no MCP server.
        MissingExtra: the ``mcp`` SDK is not installed.
    """
    with needs("agents", "talking to an MCP server"):
        from pytest_harbor.protocols import mcp_http, mcp_sse, mcp_wire
    peer = mcp_wire.Peer(shown(url), url)
    is_sse = transport == "sse"
    way = (mcp_sse.sse if is_sse else mcp_http.streamable_http)(
        peer, address=address, headers=headers or {}, timeout_seconds=timeout_seconds
    )
    async with mcp_wire.open_session(
        peer,
        way,
        # SSE is older than any other way to begin.
        mode="legacy" if is_sse else "auto",
        timeout_seconds=timeout_seconds,
    ) as wire:
        yield McpSession(wire)


async def answers(url: str, *, timeout_seconds: float = 5.0) -> bool:
    """Whether an MCP server at ``url`` accepts a session now.

    Raises:
        MissingExtra: the ``mcp`` SDK is not installed; never for what the server does.
    """
    try:
        with anyio.move_on_after(timeout_seconds):
            async with connect(url, timeout_seconds=timeout_seconds):
                return True
    except MissingExtra:
        raise
    except ProtocolError:
        return False
    return False


def repeated_names(tools: Iterable[Tool]) -> tuple[str, ...]:
    """The tool names that occur more than once, sorted (spec 4 refuses them)."""
    counted = Counter(tool.name for tool in tools)
    return tuple(sorted(name for name, times in counted.items() if times > 1))
