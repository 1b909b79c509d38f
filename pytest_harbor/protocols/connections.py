"""What both HTTP libraries under the SDKs share: limits, certificates, failures.

httpx (a2a-sdk) and httpx2 (mcp, openai) have classes of the same names and no common base.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pytest_harbor.errors import ProtocolError, ServerTimeout, ServerUnreachable
from pytest_harbor.protocols.addresses import proxy_for, shown

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Largest answer: a trajectory or a state may be big, a machine's memory is bigger."""

_NEVER_SENT: Final = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
_BROKEN: Final = frozenset({"TransportError", "OSError", "ClosedResourceError"})


def trust(url: str) -> ssl.SSLContext:
    """Certificates are read (30 ms) only for https; else a context that trusts none."""
    if url.startswith("https:") or proxy_for(url):
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def failure(error: BaseException, method: str, url: str) -> ProtocolError | None:
    """Our error for one of an HTTP library; None if it is about something else."""
    names = {kind.__name__ for kind in type(error).__mro__}
    place = f"{method} {shown(url)}"
    if names & _NEVER_SENT:
        return ServerUnreachable(
            f"{shown(url)} cannot be reached: {in_words(error)}", url=url, sent=False
        )
    if "TimeoutException" in names:
        return ServerTimeout(f"{place}: no answer in time", url=url)
    if names & _BROKEN:
        return ServerUnreachable(
            f"{place}: the connection broke: {in_words(error)}", url=url
        )
    return None


@contextmanager
def told(method: str, url: str) -> Iterator[None]:
    """Errors of an HTTP library as ours; those about something else as they are.

    Raises:
        ServerUnreachable, ServerTimeout: as :func:`failure` has it.
    """
    try:
        yield
    except Exception as error:
        ours = failure(error, method, url)
        if ours is None:
            raise
        raise ours from error


def in_words(error: BaseException) -> str:
    """What the system said, where it said something: the rest is its libraries' own."""
    cause: BaseException | None = error
    said = ""
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno and cause.errno > 0:
            said = os.strerror(cause.errno)
        elif isinstance(cause, OSError) and cause.strerror:
            said = cause.strerror
        several: Sequence[BaseException] = getattr(cause, "exceptions", ())
        cause = several[0] if several else cause.__cause__ or cause.__context__
    return said or str(error) or type(error).__name__


def refuse_encoding(encoding: str, place: str) -> None:
    """Raise for a compressed answer: a small one could unpack to gigabytes.

    Raises:
        ProtocolError: the encoding is another than ``identity``.
    """
    if encoding.strip().lower() not in ("", "identity"):
        raise ProtocolError(f"{place}: the answer is compressed ({encoding})")


class Body:
    """The bytes of an answer as they come. Raises ProtocolError past its limit."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._bytes = bytearray()

    def add(self, chunk: bytes) -> None:
        """Append what came."""
        self._bytes += chunk
        if len(self._bytes) > MAX_BODY_BYTES:
            raise ProtocolError(
                f"{self._place}: the answer is larger than "
                f"{MAX_BODY_BYTES / 1024 / 1024:g} MiB"
            )

    def content(self) -> bytes:
        """All of it."""
        return bytes(self._bytes)
