"""The official MCP SDK, put to our use: one session, and errors that say what happened.

The SDK hands a failed request back as an error without a cause, and an exception of its
HTTP client ends the whole session from the inside. So the client here lets no exception
out: it answers 502 by itself, and tells what happened to the caller of the request, in
whose context the SDK sends it.

This module imports mcp and httpx2; import it inside functions.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT

from pytest_harbor.errors import (
    HarborError,
    ProtocolError,
    ServerRefused,
    ServerTimeout,
)
from pytest_harbor.protocols import connections, json_rpc
from pytest_harbor.protocols.addresses import proxy_for, shown
from pytest_harbor.protocols.excerpts import excerpt

T = TypeVar("T")

_MAX_TOOL_PAGES: Final = 100
"""A server whose list of tools never ends is none."""
_GOODBYE_SECONDS: Final = 5.0
_SHAPE_ERRORS: Final = (ValueError, RuntimeError, TypeError, KeyError)
"""What the SDK raises for results that do not fit the protocol or the tool's schema."""


@dataclass
class _Call:
    """What the HTTP client is told of a request, and tells of it."""

    limit_seconds: float
    failures: list[ProtocolError] = field(default_factory=list)


_call: ContextVar[_Call] = ContextVar("_call")


class WireSession:
    """An initialized session."""

    def __init__(self, client: Client, guard: _Guard, timeout_seconds: float) -> None:
        self._client = client
        self._guard = guard
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
            f"tools/list: {shown(self._guard.url)} lists tools without an end",
            url=self._guard.url,
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
        call = _Call(limit_seconds)
        token = _call.set(call)
        try:
            return await answer
        except (MCPError, *_SHAPE_ERRORS) as error:
            raise self._guard.in_our_words(what, error, call) from error
        finally:
            _call.reset(token)


@asynccontextmanager
async def open_session(
    url: str, *, timeout_seconds: float, headers: Mapping[str, str] | None
) -> AsyncIterator[WireSession]:
    """A session for the block. Raises as :func:`.mcp.connect`."""
    guard = _Guard(url)
    call = _Call(timeout_seconds)
    # Not reset: an async fixture may end in another context than it began in.
    _call.set(call)
    from_block: BaseException | None = None
    try:
        async with (
            httpx2.AsyncClient(
                transport=guard,
                trust_env=False,
                headers={"accept-encoding": "identity", **(headers or {})},
                # A tool may take its time; each request has a limit of its own.
                timeout=httpx2.Timeout(timeout_seconds, read=None),
            ) as http,
            Client(
                streamable_http_client(
                    url,
                    http_client=http,
                    max_sse_event_size=connections.MAX_BODY_BYTES,
                ),
                read_timeout_seconds=timeout_seconds,
                cache=None,
            ) as client,
        ):
            try:
                yield WireSession(client, guard, timeout_seconds)
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
        raise guard.in_our_words("initialize", cause, call) from error


def _first_cause(error: BaseException) -> BaseException:
    """The exception that a group of one, or of several, began with."""
    inner = getattr(error, "exceptions", None)
    return _first_cause(inner[0]) if inner else error


class _Guard(httpx2.AsyncBaseTransport):
    """HTTP for one server, as :mod:`.http` does it, with answers instead of exceptions."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._inner = httpx2.AsyncHTTPTransport(
            verify=connections.trust(url), trust_env=False, proxy=proxy_for(url)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        call = _call.get(None)
        limit = call.limit_seconds if call else None
        if request.method == "DELETE":
            limit = _GOODBYE_SECONDS
        elif request.method == "GET":  # messages that may come or not
            limit = None
        try:
            with anyio.fail_after(limit):
                return await self._answer(request)
        except TimeoutError:
            error: ProtocolError = ServerTimeout(
                f"{shown(self.url)}: no answer in {limit:g} s", url=self.url
            )
        except ProtocolError as told:
            error = told
        if call is not None and request.method == "POST":
            call.failures.append(error)
        return httpx2.Response(502, request=request)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        url = str(request.url)
        try:
            response = await self._inner.handle_async_request(request)
            place = f"{request.method} {shown(url)}"
            connections.refuse_encoding(
                response.headers.get("content-encoding", ""), place
            )
            kind = response.headers.get("content-type", "").partition(";")[0]
            if kind.strip().lower() == "text/event-stream" or response.is_redirect:
                return response
            try:
                body = connections.Body(place)
                assert isinstance(response.stream, httpx2.AsyncByteStream)
                async for chunk in response.stream:
                    body.add(chunk)
            finally:
                await response.aclose()
        except Exception as error:
            ours = connections.failure(error, request.method, url)
            if ours is None:
                raise
            raise ours from error
        if request.method == "POST":
            _check(request, response, body.content())
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            content=body.content(),
            request=request,
        )

    def in_our_words(
        self, what: str, error: BaseException, call: _Call
    ) -> ProtocolError:
        """What a failed request comes to; ``what`` names it."""
        if call.failures:
            return call.failures[-1]
        place = shown(self.url)
        if not isinstance(error, MCPError):
            return ProtocolError(
                f"{what}: {place} answered against the protocol: {excerpt(str(error))}",
                url=self.url,
            )
        if error.code == REQUEST_TIMEOUT:
            return ServerTimeout(
                f"{what}: no answer from {place} in time", url=self.url
            )
        return ServerRefused(
            f"{what}: {place} refused: {excerpt(error.message)} ({error.code})",
            url=self.url,
            code=error.code,
            body=excerpt(error.message),
        )


def _check(request: httpx2.Request, response: httpx2.Response, body: bytes) -> None:
    """Refuse what is no answer to the request; errors are the SDK's to read.

    Raises:
        ProtocolError: it is no JSON-RPC, or answers another request.
        ServerRefused: an HTTP error without a JSON-RPC error in it.
    """
    asked = json.loads(request.content)
    if response.status_code == 202 or "id" not in asked:
        return
    url = str(request.url)
    try:
        json_rpc.read_answer(
            body, method=asked["method"], request_id=asked["id"], url=shown(url)
        )
    except ServerRefused:
        return
    except ProtocolError:
        if response.status_code < 400:
            raise
        said = excerpt(body)
        raise ServerRefused(
            f"{asked['method']}: {shown(url)} answered {response.status_code}: "
            f"{said or '(nothing)'}",
            url=url,
            status=response.status_code,
            body=said,
        ) from None
