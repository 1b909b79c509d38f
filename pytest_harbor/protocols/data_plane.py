"""Read an environment's card, and load and read its state (task-steps spec 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from typing_extensions import Self

from pytest_harbor.protocols.reply import Part

MAX_INLINE_BYTES: Final = 8 * 1024 * 1024
"""Largest file that is sent inside a request (spec 11 [I])."""


@dataclass(frozen=True)
class EnvCard:
    """An environment's card. The URLs are absolute; ``raw`` is the card as it was read.

    ``data_url`` is None when the card offers no JSON-RPC data plane, ``mcp_url`` when it
    names no MCP interface. ``operations`` are those of the data plane.
    """

    name: str
    card_url: str
    data_url: str | None
    mcp_url: str | None
    operations: frozenset[str]
    tools: tuple[Mapping[str, Any], ...]
    extensions: tuple[Mapping[str, Any], ...]
    raw: Mapping[str, Any]


async def read_card(base_url: str, *, timeout_seconds: float = 5.0) -> EnvCard | None:
    """The card at ``/.well-known/agent-env.json``, or None when there is none (404, 405).

    The URLs of the card are paths below ``base_url``; of an absolute one only the path
    counts (the server in a sandbox does not know its outside address).

    Raises:
        ServerUnreachable, ServerTimeout: nothing answers.
        ServerRefused: another HTTP error.
        ProtocolError: the answer is no card.
    """
    raise NotImplementedError


def time_limit(
    size_bytes: int, *, base: float = 900.0, per_gib: float = 1200.0
) -> float:
    """Seconds that ``data/reset`` and ``data/add`` may take for that much data (spec 5.1)."""
    raise NotImplementedError


def uri_part(
    uri: str, *, mime_type: str | None = None, name: str | None = None
) -> Part:
    """A file part that names a file inside the server's sandbox, or an https URL."""
    raise NotImplementedError


def bytes_part(file: Path, *, mime_type: str | None = None) -> Part:
    """A file part with the content of ``file``.

    Raises:
        ValueError: the file is larger than :data:`MAX_INLINE_BYTES`.
    """
    raise NotImplementedError


class DataPlane:
    """The JSON-RPC data plane at ``url`` (``EnvCard.data_url``).

    Each method raises ServerRefused with method, message and code of the server's error
    (``code`` is ``data.code`` when there is one, as ``add_failed``), ServerUnreachable,
    ServerTimeout, or ProtocolError.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None
    ) -> None: ...

    async def reset(self, *, timeout_seconds: float = 900.0) -> None:
        """``data/reset``: back to empty."""
        raise NotImplementedError

    async def add(
        self, parts: Sequence[Part], *, timeout_seconds: float = 900.0
    ) -> None:
        """``data/add``: add to what is there. At least one part, else ValueError."""
        raise NotImplementedError

    async def get(self, *, timeout_seconds: float = 60.0) -> tuple[Part, ...]:
        """``data/get``: the state, as parts."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close its sockets. May be called again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
