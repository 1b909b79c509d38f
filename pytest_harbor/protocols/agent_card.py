"""What an agent says of itself: its card, as far as the steps use it (spec 12). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

Wire: TypeAlias = Literal["0.3", "1.0"]

MCP_CONFIG: Final = "urn:agentenv:mcp-config/v1"
SKILL_CONFIG: Final = "urn:agentenv:skill-config/v1"
AGENT_CONFIG: Final = "urn:agentenv:agent-config/v1"
TRAJECTORY: Final = "urn:agentenv:trajectory/v1"


@dataclass(frozen=True)
class Extension:
    """One entry of ``capabilities.extensions``. ``endpoint`` is a path or URL, or None."""

    uri: str
    endpoint: str | None
    params: Mapping[str, Any] = field(default_factory=dict)


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
