"""Talk to an MCP server over streamable HTTP (task-steps spec 11)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


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
    """An open session. Made by :func:`connect`."""

    server_name: str | None
    protocol_version: str

    async def list_tools(self) -> tuple[Tool, ...]:
        """Every tool, over all pages, in the server's order; names may repeat.

        Raises:
            ServerRefused, ServerUnreachable, ProtocolError: as :func:`connect`.
        """
        raise NotImplementedError

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float = 120.0,
    ) -> ToolResult:
        """Call a tool. A tool that fails is a result, never an exception.

        Raises:
            ServerRefused: no tool of that name, or the server refuses the call.
            ServerUnreachable, ProtocolError: as :func:`connect`.
        """
        raise NotImplementedError


@asynccontextmanager
async def connect(
    url: str,
    *,
    timeout_seconds: float = 30.0,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[McpSession]:
    """A session with the server at ``url``, initialized; ``timeout_seconds`` per request.

    Raises:
        ServerUnreachable, ServerTimeout: no connection, no answer.
        ServerRefused: the server answers with an error.
        ProtocolError: what answers is no MCP server.
        MissingExtra: the ``mcp`` SDK is not installed.
    """
    raise NotImplementedError(url, timeout_seconds, headers)
    yield


async def answers(url: str, *, timeout_seconds: float = 5.0) -> bool:
    """Whether an MCP ``initialize`` at ``url`` succeeds now; never raises for the server."""
    raise NotImplementedError


def repeated_names(tools: tuple[Tool, ...]) -> tuple[str, ...]:
    """The tool names that occur more than once, sorted (spec 4 refuses them)."""
    raise NotImplementedError
