"""The official MCP SDK, put to our use: one session, and errors that say what happened.

The SDK hands a failed request back as an error without a cause. Each transport beside
this module leaves the cause where it is found here.

This module imports mcp; import it inside functions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import anyio
from mcp import Client
from mcp.client import Transport
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

from pytest_harbor.errors import (
    HarborError,
    ProtocolError,
    ServerRefused,
    ServerTimeout,
)
from pytest_harbor.protocols.excerpts import excerpt

T = TypeVar("T")

_MAX_TOOL_PAGES: Final = 100
"""A server whose list of tools never ends is none."""
_SHAPE_ERRORS: Final = (ValueError, RuntimeError, TypeError, KeyError)
"""What the SDK raises for results that do not fit the protocol or the tool's schema."""


@dataclass
class Call:
    """What a transport is told of a request, and tells of it."""

    limit_seconds: float
    failures: list[ProtocolError] = field(default_factory=list)


current_call: ContextVar[Call] = ContextVar("current_call")


@dataclass
class Peer:
    """The server, as messages name it."""

    place: str
    url: str = ""
    lost: ProtocolError | None = None
    """Why its transport has ended, from when it has."""

    def in_our_words(
        self, what: str, error: BaseException, call: Call
    ) -> ProtocolError:
        """What a failed request comes to; ``what`` names it."""
        if call.failures:
            return call.failures[-1]
        if not isinstance(error, MCPError):
            return ProtocolError(
                f"{what}: {self.place} answered against the protocol: "
                f"{excerpt(str(error))}",
                url=self.url,
            )
        if isinstance(error.error.data, ProtocolError):  # of a transport of ours
            return error.error.data
        if error.code == CONNECTION_CLOSED and self.lost is not None:
            return self.lost
        if error.code == REQUEST_TIMEOUT:
            return ServerTimeout(
                f"{what}: no answer from {self.place} in time", url=self.url
            )
        return ServerRefused(
            f"{what}: {self.place} refused: {excerpt(error.message)} ({error.code})",
            url=self.url,
            code=error.code,
            body=excerpt(error.message),
        )


class WireSession:
    """An initialized session."""

    def __init__(self, client: Client, peer: Peer, timeout_seconds: float) -> None:
        self._client = client
        self._peer = peer
        self._timeout_seconds = timeout_seconds
        info = client.server_info
        self.server_name = info.name if info else None
        self.protocol_version = client.protocol_version

    async def tools(self) -> list[dict[str, Any]]:
        """Every tool, as JSON."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MAX_TOOL_PAGES):
            page = await self._said(
                "tools/list",
                self._client.list_tools(cursor=cursor),
                self._timeout_seconds,
            )
            found += [
                tool.model_dump(by_alias=True, mode="json") for tool in page.tools
            ]
            cursor = page.next_cursor
            if not cursor:
                return found
        raise ProtocolError(
            f"tools/list: {self._peer.place} lists tools without an end",
            url=self._peer.url,
        )

    async def call(
        self, name: str, arguments: dict[str, Any], timeout_seconds: float
    ) -> dict[str, Any]:
        """The result of a tool, as JSON."""
        result = await self._said(
            f"tool {name}",
            self._client.call_tool(
                name, arguments, read_timeout_seconds=timeout_seconds
            ),
            timeout_seconds,
        )
        return result.model_dump(by_alias=True, exclude_none=True, mode="json")

    async def _said(self, what: str, answer: Awaitable[T], limit_seconds: float) -> T:
        call = Call(limit_seconds)
        token = current_call.set(call)
        try:
            return await answer
        except (MCPError, *_SHAPE_ERRORS) as error:
            raise self._peer.in_our_words(what, error, call) from error
        finally:
            current_call.reset(token)


@asynccontextmanager
async def open_session(
    peer: Peer,
    transport: Transport,
    *,
    mode: Literal["auto", "legacy"] = "auto",
    timeout_seconds: float,
) -> AsyncIterator[WireSession]:
    """A session for the block. Raises as :func:`.mcp.connect`."""
    call = Call(timeout_seconds)
    # Not reset: an async fixture may end in another context than it began in.
    current_call.set(call)
    from_block: BaseException | None = None
    try:
        async with Client(
            transport, mode=mode, read_timeout_seconds=timeout_seconds, cache=None
        ) as client:
            try:
                yield WireSession(client, peer, timeout_seconds)
            except BaseException as error:
                from_block = error
                raise
    except BaseException as error:
        # Task groups of the SDK wrap what passes through them, and cancel the block
        # when something of their own fails.
        cancelled = anyio.get_cancelled_exc_class()
        by_group = isinstance(from_block, cancelled) and not isinstance(
            error, cancelled
        )
        if from_block is error:
            raise
        if from_block is not None and not by_group:
            raise from_block from None
        cause = _first_cause(error)
        if isinstance(cause, HarborError) or not isinstance(cause, Exception):
            raise cause from None
        raise peer.in_our_words("initialize", cause, call) from error


def _first_cause(error: BaseException) -> BaseException:
    """The exception that a group of one, or of several, began with."""
    inner = getattr(error, "exceptions", None)
    return _first_cause(inner[0]) if inner else error
