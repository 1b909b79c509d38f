"""The HTTP client of every protocol but MCP and chat completions.

Servers in sandboxes are untrusted. A redirect is followed only on the server's own
origin, a body has a size limit, an answer may not be compressed (a small one could
unpack to gigabytes), and the errors of httpx come out as ours: from the transport, so
that an SDK which is handed such a client raises them too.

This module imports httpx; import it inside functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import anyio
import httpx

from pytest_harbor.errors import ProtocolError, ServerRefused, ServerTimeout
from pytest_harbor.protocols import connections, json_rpc
from pytest_harbor.protocols.addresses import origin, proxy_for, shown
from pytest_harbor.protocols.excerpts import MAX_LEVELS, excerpt, is_too_deep

_MAX_REDIRECTS: Final = 3
_KEPT_METHOD: Final = (307, 308)
_KEEP_ALIVE_SECONDS: Final = 4.0
"""Below uvicorn's 5 s: an idle connection is dropped by us, never under a request."""


def new_client(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = 30.0,
) -> httpx.AsyncClient:
    """A client for the server at ``url``; a proxy of the environment is for others than ours.

    Its requests raise ServerUnreachable, ServerTimeout and ProtocolError.
    """
    transport = httpx.AsyncHTTPTransport(
        verify=connections.trust(url),
        trust_env=False,
        proxy=proxy_for(url),
        limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_SECONDS),
    )
    return httpx.AsyncClient(
        transport=_Guard(transport),
        trust_env=False,
        timeout=timeout_seconds,
        headers={"accept-encoding": "identity", **(headers or {})},
    )


class _Guard(httpx.AsyncBaseTransport):
    """Reads the whole answer, within the limits that the module's docstring names."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(_MAX_REDIRECTS + 1):
            response = await self._once(request)
            target = _same_origin_target(request, response)
            if target is None:
                return response
            request = httpx.Request(
                request.method,
                target,
                headers=[*request.headers.raw],
                content=request.content,
                extensions=request.extensions,
            )
        raise ProtocolError(
            f"{shown(str(request.url))} redirects in circles", url=str(request.url)
        )

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _once(self, request: httpx.Request) -> httpx.Response:
        url = str(request.url)
        place = f"{request.method} {shown(url)}"
        with connections.told(request.method, url):
            response = await self._inner.handle_async_request(request)
            try:
                body = await self._read(response, place)
            finally:
                await response.aclose()
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            content=body,
            request=request,
            extensions={
                key: value
                for key, value in response.extensions.items()
                if key != "network_stream"
            },
        )

    async def _read(self, response: httpx.Response, place: str) -> bytes:
        connections.refuse_encoding(response.headers.get("content-encoding", ""), place)
        body = connections.Body(place)
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        async for chunk in stream:
            body.add(chunk)
        return body.content()


def _same_origin_target(
    request: httpx.Request, response: httpx.Response
) -> httpx.URL | None:
    """Where a redirect leads that is to be followed: same origin, same method."""
    location = response.headers.get("location")
    if response.status_code not in _KEPT_METHOD and not (
        response.is_redirect and request.method == "GET"
    ):
        return None
    if not location:
        return None
    try:
        target = request.url.join(location)
        stays = origin(str(target)) == origin(str(request.url))
    except (httpx.InvalidURL, ValueError):
        return None
    return target if stays else None


async def request(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    json_body: object = None,
    timeout_seconds: float,
) -> httpx.Response:
    """One request; ``timeout_seconds`` bounds the whole, however slowly it drips.

    Raises:
        ServerUnreachable, ServerTimeout, ProtocolError: from the client.
    """
    try:
        with anyio.fail_after(timeout_seconds):
            return await client.request(
                method,
                url,
                json=json_body,
                timeout=timeout_seconds,
            )
    except TimeoutError as error:
        raise ServerTimeout(
            f"{method} {shown(url)}: no answer in {timeout_seconds:g} s", url=url
        ) from error
    except httpx.InvalidURL as error:
        raise ProtocolError(f"{shown(url)} is no URL: {error}", url=url) from error


def checked(response: httpx.Response) -> httpx.Response:
    """The response, if its status is below 300.

    Raises:
        ServerRefused: another status; with the start of the body.
    """
    if response.status_code < 300:
        return response
    url = str(response.request.url)
    place = f"{response.request.method} {shown(url)}"
    said = excerpt(response.content)
    if response.is_redirect:
        location = response.headers.get("location", "")
        said = f"a redirect to {shown(location)}, which is not followed"
    raise ServerRefused(
        f"{place} answered {response.status_code}: {said or '(nothing)'}",
        url=url,
        status=response.status_code,
        body=said,
    )


def json_of(response: httpx.Response) -> Any:
    """The JSON that a response holds.

    Raises:
        ProtocolError: it is not JSON, or nested too deeply for records; with its start.
    """
    url = str(response.request.url)
    place = f"{response.request.method} {shown(url)}"
    try:
        value = json.loads(response.content)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(
            f"{place} answered no JSON: {excerpt(response.content) or '(nothing)'}",
            url=url,
        ) from error
    if is_too_deep(value):
        raise ProtocolError(
            f"{place} answered JSON of more than {MAX_LEVELS} levels: "
            f"{excerpt(response.content, characters=60)}",
            url=url,
        )
    return value


def rpc_result(response: httpx.Response, *, method: str, request_id: object) -> Any:
    """The ``result`` of a JSON-RPC answer.

    An error object counts whatever the HTTP status; without one the status does.

    Raises:
        ServerRefused, ProtocolError: as :func:`.json_rpc.read_answer`, :func:`checked`.
    """
    url = str(response.request.url)
    try:
        return json_rpc.read_answer(
            response.content,
            method=method,
            request_id=request_id,
            url=shown(url),
            status=response.status_code,
        )
    except ServerRefused:
        raise
    except ProtocolError:
        checked(response)
        raise
