"""MCP over SSE, the transport before streamable HTTP, and what a task gets that names none.

The server sends everything over one response that never ends, and takes messages at an
address that it names first. The SDK's own client (2.3) waits for ever on a server that names
one of another host, as one in a sandbox does that knows itself as ``0.0.0.0``; it tells
nobody that a message could not be sent; and a result of more than 1 MiB ends its session by an
exception into the middle of whatever uses it. So the way is ours, the session above and the
parser below are theirs.

This module imports mcp and httpx2; import it inside functions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit, urlunsplit

import anyio
import httpx2
from mcp.shared.message import SessionMessage

from pytest_harbor.errors import ProtocolError, ServerRefused, ServerTimeout
from pytest_harbor.protocols import connections
from pytest_harbor.protocols.addresses import origin, shown
from pytest_harbor.protocols.excerpts import excerpt
from pytest_harbor.protocols.mcp_http import Way, new_client
from pytest_harbor.protocols.mcp_messages import message_streams, parsed
from pytest_harbor.protocols.mcp_wire import Peer

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_MAX_REDIRECTS: Final = 3
_EVENT_STREAM: Final = "text/event-stream"


@asynccontextmanager
async def sse(
    peer: Peer,
    *,
    address: str | None,
    headers: Mapping[str, str],
    timeout_seconds: float,
) -> AsyncIterator[TransportStreams]:
    """A transport to the server at ``peer.url``, for :func:`.mcp_wire.open_session`."""
    async with new_client(Way(peer.url, address), headers, timeout_seconds) as http:
        line = _Line(http, peer.url, timeout_seconds)
        try:
            events = await line.open()
            async with message_streams(peer, line.messages(events), line.send) as both:
                yield both
        finally:
            await line.aclose()


class _Line:
    """The response that never ends, and where messages go."""

    def __init__(
        self, http: httpx2.AsyncClient, url: str, timeout_seconds: float
    ) -> None:
        self._http = http
        self._url = url
        self._timeout_seconds = timeout_seconds
        self._response: httpx2.Response | None = None
        self._endpoint = ""

    async def open(self) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """Wait for the first event, which names the endpoint; gives those that follow.

        Raises:
            ServerUnreachable, ServerTimeout, ServerRefused, ProtocolError: in time.
        """
        with self._told("GET"), anyio.fail_after(self._timeout_seconds):
            request = self._http.build_request(
                "GET",
                self._url,
                headers={"accept": _EVENT_STREAM, "cache-control": "no-store"},
            )
            self._response = response = await self._sent(request)
            await self._check(response, _EVENT_STREAM)
            events = self._events(response)
            async for event in events:
                if event.event == "endpoint":
                    self._endpoint = self._as_ours(event.data)
                    return events
        raise ProtocolError(
            f"GET {shown(self._url)} ended before it named an endpoint", url=self._url
        )

    async def messages(
        self, events: AsyncGenerator[httpx2.ServerSentEvent, None]
    ) -> AsyncGenerator[SessionMessage, None]:
        """What the server sends. Raises ServerUnreachable, ProtocolError."""
        with self._told("GET"):
            async for event in events:
                if event.event != "message" or not event.data:
                    continue
                try:
                    message = parsed(event.data)
                except ValueError as error:
                    raise ProtocolError(
                        f"{shown(self._url)} sent no JSON-RPC message: "
                        f"{excerpt(event.data)}",
                        url=self._url,
                    ) from error
                yield message

    async def send(self, text: bytes) -> None:
        """Post a message. Raises ServerUnreachable, ServerRefused, ProtocolError."""
        with self._told("POST"):
            request = self._http.build_request(
                "POST",
                self._endpoint,
                content=text,
                headers={"content-type": "application/json"},
            )
            response = await self._sent(request)
            try:
                await self._check(response)
            finally:
                await response.aclose()

    async def aclose(self) -> None:
        """Hang up."""
        if self._response is not None:
            await self._response.aclose()

    async def _events(
        self, response: httpx2.Response
    ) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        try:
            async for event in httpx2.EventSource(response, connections.MAX_BODY_BYTES):
                yield event
        except httpx2.SSEError as error:
            raise ProtocolError(
                f"GET {shown(self._url)}: an event is larger than "
                f"{connections.MAX_BODY_BYTES / 1024 / 1024:g} MiB",
                url=self._url,
            ) from error

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        """The response, after redirects on the server's own origin."""
        for _ in range(_MAX_REDIRECTS + 1):
            response = await self._http.send(request, stream=True)
            following = response.next_request
            if (
                following is None
                or following.method != request.method
                or origin(str(following.url)) != origin(self._url)
            ):
                return response
            await response.aclose()
            request = following
        raise ProtocolError(
            f"{shown(str(request.url))} redirects in circles", url=self._url
        )

    async def _check(self, response: httpx2.Response, kind: str = "") -> None:
        """Refuse what is no answer to what was asked, with the start of what it says."""
        place = f"{response.request.method} {shown(self._url)}"
        connections.refuse_encoding(response.headers.get("content-encoding", ""), place)
        given = response.headers.get("content-type", "").partition(";")[0]
        if response.is_success and given.strip().lower().startswith(kind):
            return
        body = connections.Body(place)
        async for chunk in response.aiter_raw():
            body.add(chunk)
        said = excerpt(body.content()) or "(nothing)"
        if response.is_success:
            raise ProtocolError(f"{place} answered no events: {said}", url=self._url)
        if response.is_redirect:
            location = shown(response.headers.get("location", ""))
            said = f"a redirect to {location}, which is not followed"
        raise ServerRefused(
            f"{place} answered {response.status_code}: {said}",
            url=self._url,
            status=response.status_code,
            body=said,
        )

    def _as_ours(self, endpoint: str) -> str:
        """The endpoint on the origin where the server was reached (:func:`.below`)."""
        found = urlsplit(urljoin(self._url, endpoint))
        own = urlsplit(self._url)
        return urlunsplit((own.scheme, own.netloc, found.path, found.query, ""))

    @contextmanager
    def _told(self, method: str) -> Iterator[None]:
        with connections.told(method, self._url):
            try:
                yield
            except TimeoutError as error:
                raise ServerTimeout(
                    f"{method} {shown(self._url)}: no answer in "
                    f"{self._timeout_seconds:g} s",
                    url=self._url,
                ) from error
