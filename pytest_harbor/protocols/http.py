"""The HTTP client of every protocol but MCP and chat completions.

Servers in sandboxes are untrusted. A redirect is followed only on the server's own
origin, a body has a size limit, an answer may not be compressed (a small one could
unpack to gigabytes), and the errors of httpx come out as ours: from the transport, so
that an SDK which is handed such a client raises them too.

This module imports httpx; import it inside functions.
"""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx

from pytest_harbor.errors import (
    ProtocolError,
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
)
from pytest_harbor.protocols import json_rpc
from pytest_harbor.protocols.addresses import is_local, origin, shown
from pytest_harbor.protocols.excerpts import excerpt

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Largest answer: a trajectory or a state may be big, a machine's memory is bigger."""
_MAX_REDIRECTS: Final = 3
_KEPT_METHOD: Final = (307, 308)
_KEEP_ALIVE_SECONDS: Final = 4.0
"""Below uvicorn's 5 s: an idle connection is dropped by us, never under a request."""


def new_client(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = 30.0,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> httpx.AsyncClient:
    """A client for the server at ``url``; a proxy of the environment is for others than ours.

    Its requests raise ServerUnreachable, ServerTimeout and ProtocolError.
    """
    transport = httpx.AsyncHTTPTransport(
        verify=_trust(url),
        trust_env=False,
        proxy=proxy_for(url),
        limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_SECONDS),
    )
    return httpx.AsyncClient(
        transport=_Guard(transport, max_body_bytes),
        trust_env=False,
        timeout=timeout_seconds,
        headers={"accept-encoding": "identity", **(headers or {})},
    )


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for ``url``; None for sandboxes and localhost."""
    parts = urlsplit(url)
    if is_local(url) or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


def _trust(url: str) -> ssl.SSLContext:
    """Certificates are read (30 ms) only for https; else a context that trusts none."""
    if url.startswith("https:") or proxy_for(url):
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class _Guard(httpx.AsyncBaseTransport):
    """Reads the whole answer, within the limits that the module's docstring names."""

    def __init__(self, inner: httpx.AsyncBaseTransport, max_body_bytes: int) -> None:
        self._inner = inner
        self._max_body_bytes = max_body_bytes

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
        try:
            response = await self._inner.handle_async_request(request)
            try:
                body = await self._read(response, place)
            finally:
                await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ServerUnreachable(
                f"{shown(url)} cannot be reached: {_in_words(error)}",
                url=url,
                sent=False,
            ) from error
        except httpx.TimeoutException as error:
            raise ServerTimeout(f"{place}: no answer in time", url=url) from error
        except (httpx.TransportError, OSError, anyio.ClosedResourceError) as error:
            raise ServerUnreachable(
                f"{place}: the connection broke: {_in_words(error)}", url=url
            ) from error
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
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in ("", "identity"):
            raise ProtocolError(f"{place}: the answer is compressed ({encoding})")
        body = bytearray()
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        async for chunk in stream:
            body += chunk
            if len(body) > self._max_body_bytes:
                raise ProtocolError(
                    f"{place}: the answer is larger than "
                    f"{self._max_body_bytes / 1024 / 1024:g} MiB"
                )
        return bytes(body)


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


def _in_words(error: BaseException) -> str:
    """What the system said, where it said something: the rest is its libraries' own."""
    cause: BaseException | None = error
    said = ""
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            said = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return said or str(error) or type(error).__name__


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
        ProtocolError: it is not JSON; with the start of it.
    """
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError) as error:
        url = str(response.request.url)
        raise ProtocolError(
            f"{response.request.method} {shown(url)} answered no JSON: "
            f"{excerpt(response.content) or '(nothing)'}",
            url=url,
        ) from error


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
