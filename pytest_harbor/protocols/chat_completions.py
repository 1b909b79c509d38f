"""One call of a model behind an OpenAI-compatible chat-completions endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model wants called. ``arguments`` is the JSON text as it came."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Usage:
    """Tokens of one call; None when the endpoint does not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None


@dataclass(frozen=True)
class Completion:
    """What the model answered."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    """``stop``, ``length``, ``tool_calls``, ``content_filter``, ..."""
    usage: Usage
    model: str
    """The model that answered, as the endpoint names it."""
    schema_used: bool
    """Whether the endpoint was asked for the JSON schema; false when it refused one."""
    raw: Mapping[str, Any]


async def complete(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    response_format: Mapping[str, Any] | None = None,
    api_base: str | None = None,
    api_key: str | None = None,
    timeout_seconds: float = 120.0,
    params: Mapping[str, Any] | None = None,
) -> Completion:
    """Ask a model once; nothing is tried again but a refused schema.

    ``model`` is a name as tasks write it (see :func:`wire_model`). ``response_format`` is
    ``{"type": "json_schema", "schema": {...}}`` (the step format's ``output_format``) or
    the endpoint's own form; an endpoint that refuses it is asked again without it, with
    the schema in words. ``tools`` are in the endpoint's form; ``params`` are further
    parameters of the request (``temperature``, ...).

    The endpoint is ``api_base``, else ``OPENAI_BASE_URL``, else ``LITELLM_BASE_URL``, else
    OpenAI's own; the key is ``api_key``, else ``OPENAI_API_KEY``, ``LITELLM_API_KEY``.

    Raises:
        ServerRefused: the endpoint answered with an HTTP error; ``status`` and ``code`` say which.
        ServerTimeout: no answer in ``timeout_seconds``.
        ServerUnreachable: no connection, or it broke.
        ProtocolError: the answer is no completion.
        SettingsError: no key.
        MissingExtra: the ``openai`` SDK is not installed.
    """
    raise NotImplementedError


def wire_model(model: str, api_base: str | None) -> str:
    """The name that is sent for ``model``."""
    raise NotImplementedError
