"""What an agent says of itself: its card, as far as the steps use it (spec 12). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pytest_harbor.errors import ProtocolError
from pytest_harbor.protocols.addresses import below, join, origin, shown

Wire: TypeAlias = Literal["0.3", "1.0"]

CARD_PATHS: Final = ("/.well-known/agent-card.json", "/.well-known/agent.json")
FALLBACK_PATH: Final = "/a2a"
"""Where messages go when the card declares no URL, or one that is not there."""

TOKEN_VARIABLE: Final = "HARBOR_AGENT_TOKEN"  # noqa: S105 - a name
"""Environment variable of an agent's process. The engine sends its value with each call, as
``Authorization: Bearer <token>``: agents that share a network could else prompt or set up
one another, a judge for one."""

MCP_CONFIG: Final = "urn:agentenv:mcp-config/v1"
SKILL_CONFIG: Final = "urn:agentenv:skill-config/v1"
AGENT_CONFIG: Final = "urn:agentenv:agent-config/v1"
TRAJECTORY: Final = "urn:agentenv:trajectory/v1"

SKILL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Extension:
    """One entry of ``capabilities.extensions``. ``endpoint`` is a path or URL, or None."""

    uri: str
    endpoint: str | None
    params: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, method: str) -> frozenset[str]:
        """The request keys that ``params.methods`` lists for a method; may be empty.

        They stand in ``request.supported``, or in ``required`` and ``optional``.
        """
        request = _object(_object(_object(self.params.get("methods")).get(method)))
        request = _object(request.get("request"))
        return frozenset(
            key
            for group in ("supported", "required", "optional")
            for key in _strings(request.get(group))
        )


@dataclass(frozen=True)
class AgentCard:
    """An agent's card. ``url`` is where messages go, ``raw`` the card as it was read."""

    name: str
    url: str
    wire: Wire
    extensions: Mapping[str, Extension]
    raw: Mapping[str, Any]
    card_url: str

    def has(self, uri: str) -> bool:
        """Whether the card lists that extension with an endpoint."""
        extension = self.extensions.get(uri)
        return extension is not None and extension.endpoint is not None


def parse_card(
    card: object, base_url: str, card_url: str, *, same_origin: bool = True
) -> AgentCard:
    """The card in ``card``, a decoded JSON document of either wire version.

    Of several JSON-RPC interfaces one of version 1 is taken before one of 0.3.

    Raises:
        ProtocolError: it is no agent card, or offers no JSON-RPC.
    """
    place = shown(card_url)
    fields = _object(card)
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise ProtocolError(f"{place} is no agent card: no `name`", url=card_url)
    offered = list(_interfaces(fields))
    speakable = [entry for entry in offered if entry.binding == "JSONRPC"]
    if offered and not speakable:
        found = ", ".join(sorted({entry.binding for entry in offered}))
        raise ProtocolError(
            f"agent {name!r} offers {found} only ({place}); JSON-RPC is needed",
            url=card_url,
        )
    chosen = min(
        speakable or [_Interface("", "JSONRPC", "0.3")],
        key=lambda entry: entry.wire != "1.0",
    )
    return AgentCard(
        name=name,
        url=_address(chosen.url, base_url, same_origin=same_origin),
        wire=chosen.wire,
        extensions=_extensions(fields),
        raw=fields,
        card_url=card_url,
    )


@dataclass(frozen=True)
class _Interface:
    url: str
    binding: str
    version: str

    @property
    def wire(self) -> Wire:
        return "0.3" if self.version.startswith("0.") else "1.0"


def _interfaces(card: Mapping[str, Any]) -> Iterator[_Interface]:
    if isinstance(card.get("supportedInterfaces"), list):
        for entry in map(_object, card["supportedInterfaces"]):
            yield _Interface(
                _text(entry.get("url")),
                _text(entry.get("protocolBinding"), "JSONRPC").upper(),
                _text(entry.get("protocolVersion"), "1.0"),
            )
        return
    version = _text(card.get("protocolVersion"), "0.3")
    if isinstance(card.get("url"), str) or "preferredTransport" in card:
        transport = _text(card.get("preferredTransport"), "JSONRPC").upper()
        yield _Interface(_text(card.get("url")), transport, version)
    entries = card.get("additionalInterfaces")
    for entry in map(_object, entries if isinstance(entries, list) else []):
        transport = _text(entry.get("transport")).upper()
        yield _Interface(_text(entry.get("url")), transport, version)


def _address(declared: str, base_url: str, *, same_origin: bool) -> str:
    if not declared:
        return join(base_url, FALLBACK_PATH)
    if not same_origin:
        try:
            origin(declared)
        except ValueError:
            pass
        else:
            return declared
    return below(base_url, declared)


def _extensions(card: Mapping[str, Any]) -> dict[str, Extension]:
    entries = _object(card.get("capabilities")).get("extensions")
    found = {}
    for entry in map(_object, entries if isinstance(entries, list) else []):
        uri = _text(entry.get("uri"))
        params = _object(entry.get("params"))
        if uri:
            endpoint = _text(params.get("endpoint")) or None
            found[uri] = Extension(uri, endpoint, params)
    return found


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object, default: str = "") -> str:
    return value if isinstance(value, str) and value else default


def _strings(value: object) -> Iterator[str]:
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, str):
            yield entry
