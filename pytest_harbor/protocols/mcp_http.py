"""MCP over streamable HTTP: the SDK's transport, and a client under it that lets no exception out.

The SDK hands a failed request back as an error without a cause, and an exception of its
HTTP client ends the whole session from the inside. So the client here answers 502 by itself,
and tells what happened to the caller of the request, in whose context the SDK sends it.

This module imports mcp and httpx2; import it inside functions.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client

from pytest_harbor.errors import ProtocolError, ServerRefused, ServerTimeout
from pytest_harbor.protocols import connections, json_rpc
from pytest_harbor.protocols.addresses import proxy_for, shown
from pytest_harbor.protocols.excerpts import excerpt
from pytest_harbor.protocols.mcp_wire import Peer, current_call

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_GOODBYE_SECONDS: Final = 5.0


@asynccontextmanager
async def streamable_http(
    peer: Peer,
    *,
    address: str | None,
    headers: Mapping[str, str],
    timeout_seconds: float,
) -> AsyncIterator[TransportStreams]:
    """A transport to the server at ``peer.url``, for :func:`.mcp_wire.open_session`."""
    async with (
        new_client(_Guard(Way(peer.url, address)), headers, timeout_seconds) as http,
        streamable_http_client(
            peer.url, http_client=http, max_sse_event_size=connections.MAX_BODY_BYTES
        ) as streams,
    ):
        yield streams


def new_client(
    transport: httpx2.AsyncBaseTransport,
    headers: Mapping[str, str],
    timeout_seconds: float,
) -> httpx2.AsyncClient:
    """A client that knows nothing of the environment; reading is for its user to limit."""
    return httpx2.AsyncClient(
        transport=transport,
        trust_env=False,
        headers={"accept-encoding": "identity", **headers},
        # A tool may take its time; each request has a limit of its own.
        timeout=httpx2.Timeout(timeout_seconds, read=None),
    )


class Way(httpx2.AsyncBaseTransport):
    """HTTP for the server at ``url``, which is found at ``address`` if that is given.

    The server sees the request that it would see from where ``url`` is known: its own
    name, in the ``Host`` header and in TLS. Some refuse every other one.
    """

    def __init__(self, url: str, address: str | None) -> None:
        self._host = httpx2.URL(url).host
        self._address = address
        target = url if address is None else str(self._at(httpx2.URL(url), address))
        self._inner = httpx2.AsyncHTTPTransport(
            verify=connections.trust(target), trust_env=False, proxy=proxy_for(target)
        )

    @staticmethod
    def _at(url: httpx2.URL, address: str) -> httpx2.URL:
        return url.copy_with(host=address)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._address is not None and request.url.host == self._host:
            request = httpx2.Request(
                request.method,
                self._at(request.url, self._address),
                headers=request.headers.raw,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": self._host},
            )
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Guard(httpx2.AsyncBaseTransport):
    """HTTP for one server, as :mod:`.http` does it, with answers instead of exceptions."""

    def __init__(self, way: Way) -> None:
        self._way = way

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        call = current_call.get(None)
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
                f"{shown(str(request.url))}: no answer in {limit:g} s",
                url=str(request.url),
            )
        except ProtocolError as told:
            error = told
        if call is not None and request.method == "POST":
            call.failures.append(error)
        return httpx2.Response(502, request=request)

    async def aclose(self) -> None:
        await self._way.aclose()

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        url = str(request.url)
        with connections.told(request.method, url):
            response = await self._way.handle_async_request(request)
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
        if request.method == "POST":
            _check(request, response, body.content())
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            content=body.content(),
            request=request,
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
