"""Read an environment's card, and load and read its state (task-steps spec 11)."""

from __future__ import annotations

import base64
import mimetypes
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

from pytest_harbor.errors import ProtocolError
from pytest_harbor.protocols import json_rpc
from pytest_harbor.protocols.addresses import below, join, shown
from pytest_harbor.protocols.extras import needs
from pytest_harbor.protocols.reply import Part

if TYPE_CHECKING:
    import httpx

CARD_PATH: Final = "/.well-known/agent-env.json"
DATA_PATH: Final = "/agentenv"
MCP_PATH: Final = "/mcp"

TOKEN_VARIABLE: Final = "HARBOR_DATA_TOKEN"  # noqa: S105 - a name
"""Environment variable of a server: with it, ``/agentenv`` is only for those who send
``Authorization: Bearer <token>``. An agent reaches its env's port, and could else load
data or read what it should find out. Servers that do not know it answer everybody."""

RESET: Final = "data/reset"
ADD: Final = "data/add"
GET: Final = "data/get"
OPERATIONS: Final = frozenset({RESET, ADD, GET})

MAX_INLINE_BYTES: Final = 8 * 1024 * 1024
"""Largest file that is sent inside a request (spec 11 [I])."""
MAX_LOAD_SECONDS: Final = 3600.0
_GIGABYTE: Final = 1_000_000_000


@dataclass(frozen=True)
class EnvCard:
    """An environment's card. The URLs are absolute; ``raw`` is the card as it was read.

    ``operations`` are those of the data plane: all three when the card names none, and
    none when it has an empty list.
    """

    name: str
    card_url: str
    data_url: str
    mcp_url: str
    operations: frozenset[str]
    tools: tuple[Mapping[str, Any], ...]
    extensions: tuple[Mapping[str, Any], ...]
    raw: Mapping[str, Any]


async def read_card(base_url: str, *, timeout_seconds: float = 5.0) -> EnvCard | None:
    """The card at ``/.well-known/agent-env.json``, or None when there is none (404, 405).

    Its URLs are paths below ``base_url``; of an absolute one only the path counts (the
    server in a sandbox does not know its outside address).

    Raises:
        ServerUnreachable, ServerTimeout: nothing answers.
        ServerRefused: another HTTP error.
        ProtocolError: the answer is no card.
        MissingExtra: httpx is not installed.
    """
    with needs("agents", "reading an environment's card"):
        from pytest_harbor.protocols import http
    url = join(base_url, CARD_PATH)
    async with http.new_client(base_url) as client:
        response = await http.request(
            client, "GET", url, timeout_seconds=timeout_seconds
        )
    if response.status_code in (404, 405):
        return None
    return parse_card(http.json_of(http.checked(response)), base_url)


def parse_card(card: object, base_url: str) -> EnvCard:
    """The card in ``card``, a decoded JSON document. Unknown keys are kept in ``raw``.

    Raises:
        ProtocolError: it is no card.
    """
    url = join(base_url, CARD_PATH)
    if not isinstance(card, dict):
        raise ProtocolError(f"the env card at {shown(url)} is no JSON object", url=url)
    name = card.get("name")
    if not isinstance(name, str) or not name:
        raise ProtocolError(f"the env card at {shown(url)} has no `name`", url=url)
    capabilities = card.get("capabilities")
    if not isinstance(capabilities, dict):
        capabilities = {}
    operations = capabilities.get("operations")
    return EnvCard(
        name=name,
        card_url=url,
        data_url=below(base_url, _text(card.get("url")) or DATA_PATH),
        mcp_url=below(base_url, _mcp_path(card.get("additionalInterfaces"))),
        operations=OPERATIONS
        if not isinstance(operations, list)
        else frozenset(entry for entry in operations if isinstance(entry, str)),
        tools=_objects(capabilities.get("tools")),
        extensions=_objects(capabilities.get("extensions")),
        raw=card,
    )


def _mcp_path(interfaces: object) -> str:
    for interface in _objects(interfaces):
        if str(interface.get("transport", "")).lower() == "mcp":
            return _text(interface.get("url")) or MCP_PATH
    return MCP_PATH


def _objects(value: object) -> tuple[Mapping[str, Any], ...]:
    entries = value if isinstance(value, list) else []
    return tuple(entry for entry in entries if isinstance(entry, dict))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def time_limit(
    size_bytes: int, *, base: float = 900.0, per_gigabyte: float = 1200.0
) -> float:
    """Seconds that ``data/reset`` and ``data/add`` may take for that much data (spec 5.1)."""
    return min(MAX_LOAD_SECONDS, base + per_gigabyte * size_bytes / _GIGABYTE)


def uri_part(
    uri: str, *, mime_type: str | None = None, name: str | None = None
) -> Part:
    """A file part that names a file inside the server's sandbox, or an https URL."""
    return _file_part({"uri": uri}, mime_type, name)


def bytes_part(file: Path, *, mime_type: str | None = None) -> Part:
    """A file part with the content of ``file``, for a server outside our sandboxes.

    Raises:
        ValueError: the file is larger than :data:`MAX_INLINE_BYTES`.
        OSError: it cannot be read.
    """
    size = file.stat().st_size
    if size > MAX_INLINE_BYTES:
        raise ValueError(
            f"{file.name} has {size / 1024 / 1024:.1f} MiB; at most "
            f"{MAX_INLINE_BYTES // 1024 // 1024} MiB can be sent to an environment "
            "outside our sandboxes"
        )
    content = base64.b64encode(file.read_bytes()).decode("ascii")
    guessed = mime_type or mimetypes.guess_type(file.name)[0]
    return _file_part({"bytes": content}, guessed, file.name)


def _file_part(
    place: Mapping[str, str], mime_type: str | None, name: str | None
) -> Part:
    file = dict(place)
    if mime_type:
        file["mimeType"] = mime_type
    if name:
        file["name"] = name
    return {"kind": "file", "file": file}


class DataPlane:
    """The JSON-RPC data plane at ``url`` (``EnvCard.data_url``).

    Each method raises ServerRefused with method, message and code of the server's error
    (``code`` is ``data.code`` when there is one, as ``add_failed``), ServerUnreachable,
    ServerTimeout, or ProtocolError. Making one raises MissingExtra without httpx.

    ``token`` is what the server got in :data:`TOKEN_VARIABLE`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        with needs("agents", "the data plane of an environment"):
            from pytest_harbor.protocols import http
        self.url = url
        sent = dict(headers or {})
        if token:
            sent["authorization"] = f"Bearer {token}"
        self._client: httpx.AsyncClient = http.new_client(url, headers=sent)

    async def reset(self, *, timeout_seconds: float = 900.0) -> None:
        """``data/reset``: back to empty."""
        await self._call(RESET, {}, timeout_seconds)

    async def add(
        self, parts: Sequence[Part], *, timeout_seconds: float = 900.0
    ) -> None:
        """``data/add``: add to what is there. At least one part, else ValueError."""
        if not parts:
            raise ValueError("data/add needs at least one part")
        await self._call(
            ADD, {"parts": [dict(part) for part in parts]}, timeout_seconds
        )

    async def get(self, *, timeout_seconds: float = 60.0) -> tuple[Part, ...]:
        """``data/get``: the state, as parts."""
        result = await self._call(GET, {}, timeout_seconds)
        parts = result.get("parts") if isinstance(result, dict) else None
        if not isinstance(parts, list):
            raise ProtocolError(
                f"{GET}: {shown(self.url)} answered no `parts`", url=self.url
            )
        return _objects(parts)

    async def _call(
        self, method: str, params: Mapping[str, Any], timeout_seconds: float
    ) -> Any:
        from pytest_harbor.protocols import http

        request_id = uuid.uuid4().hex
        response = await http.request(
            self._client,
            "POST",
            self.url,
            json_body=json_rpc.request(method, params, request_id),
            timeout_seconds=timeout_seconds,
        )
        return http.rpc_result(response, method=method, request_id=request_id)

    async def aclose(self) -> None:
        """Close its sockets. May be called again."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
