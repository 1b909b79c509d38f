"""What a client sent, the same for every wire format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Message:
    """One entry of the conversation that a request carries."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: tuple[str, ...] = ()
    """Names of the tool calls of an assistant's message."""
    call_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tool:
    """A tool that the client offers."""

    name: str
    schema: Mapping[str, Any]
    """JSON schema of its arguments; empty for a tool that takes free text."""
    namespace: str = ""
    """Of the responses API: where the tool's name is at home."""

    @property
    def properties(self) -> Mapping[str, Any]:
        return self.schema.get("properties") or {}

    @property
    def required(self) -> Sequence[str]:
        return self.schema.get("required") or ()


@dataclass(frozen=True)
class Request:
    """A request for an answer of the model."""

    path: str
    model: str
    streams: bool
    conversation: tuple[Message, ...]
    tools: tuple[Tool, ...]
    body: Mapping[str, Any] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)

    def texts(self, role: str) -> list[str]:
        """The texts of one role, in order."""
        return [entry.text for entry in self.conversation if entry.role == role]


def join_text(content: object) -> str:
    """The text of a message's content: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict):
            text = part.get("text", part.get("content", ""))
            parts.append(text if isinstance(text, str) else join_text(text))
    return "\n".join(part for part in parts if part)
