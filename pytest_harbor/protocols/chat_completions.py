"""One call of a model behind an OpenAI-compatible chat-completions endpoint."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio

from pytest_harbor.errors import (
    ProtocolError,
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
)
from pytest_harbor.protocols.addresses import is_local, origin, shown
from pytest_harbor.protocols.connections import in_words
from pytest_harbor.protocols.excerpts import excerpt
from pytest_harbor.protocols.extras import needs

if TYPE_CHECKING:
    import openai

OPENAI_URL: Final = "https://api.openai.com/v1"
_PROTOCOL_PREFIX: Final = "openai/"
NO_KEY: Final = "none"
_EXTRA: Final = "judge"
_WHAT: Final = "asking a model by chat completions"
_SCHEMA_REFUSED: Final = (400, 415, 422, 501)
"""How endpoints answer a ``response_format`` that they do not know."""


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
    """Whether the answer was bound to a schema; false when the endpoint refused one."""
    raw: Mapping[str, Any]


@dataclass(frozen=True)
class Endpoint:
    """Where a call goes. ``whole_names``: it is a proxy that knows ``openai/...`` names."""

    url: str
    key: str = field(repr=False)
    whole_names: bool = False

    @property
    def lacks_key(self) -> bool:
        """True for OpenAI's own endpoint, which answers nobody without a key, and no key."""
        return self.url == OPENAI_URL and self.key == NO_KEY

    def wire_model(self, model: str) -> str:
        """The name that is sent for ``model``.

        ``openai/judge-small`` is how LiteLLM and the step format write "the model
        ``judge-small`` of an endpoint that speaks OpenAI's protocol", so one leading
        ``openai/`` is taken off; the endpoint of ``LITELLM_BASE_URL`` gets names whole.
        Other prefixes are part of the endpoint's own names and stay.
        """
        return model if self.whole_names else model.removeprefix(_PROTOCOL_PREFIX)


def find_endpoint(
    api_base: str | None, api_key: str | None, environ: Mapping[str, str]
) -> Endpoint:
    """The endpoint that the arguments name, else the environment.

    The URL is ``api_base``, else ``OPENAI_BASE_URL``, else ``LITELLM_BASE_URL``, else
    OpenAI's own. A key of the environment goes only to the endpoint of the environment
    (or OpenAI): a task file may name an endpoint, and must not be able to collect keys.

    Raises:
        ValueError: the URL is no http or https URL.
    """
    proxy = environ.get("LITELLM_BASE_URL") or None
    own = environ.get("OPENAI_BASE_URL") or None
    url = api_base or own or proxy or OPENAI_URL
    whole_names = proxy is not None and origin(url) == origin(proxy)
    names = ["OPENAI_API_KEY", "LITELLM_API_KEY"]
    if whole_names:
        names.reverse()
    known = {origin(known) for known in (own, proxy, OPENAI_URL) if known}
    if api_key is None and origin(url) in known:
        api_key = next((environ[name] for name in names if environ.get(name)), None)
    return Endpoint(url, api_key or NO_KEY, whole_names)


def check_installed() -> None:
    """Find the SDK without importing it. Raises MissingExtra."""
    with needs(_EXTRA, _WHAT):
        if importlib.util.find_spec("openai") is None:
            raise ModuleNotFoundError(name="openai")


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

    ``model`` is a name as tasks write it (see :meth:`Endpoint.wire_model`).
    ``response_format`` is ``{"type": "json_schema", "schema": {...}}`` (the step format's
    ``output_format``) or the endpoint's own form; an endpoint that refuses it is asked
    again with the schema in words. ``tools`` are in the endpoint's form; ``params`` are
    further parameters of the request (``temperature``, ...). :func:`find_endpoint` says
    where the call goes, and with which key. ``timeout_seconds`` bounds each request.

    Raises:
        ServerRefused: the endpoint answered with an HTTP error; ``status`` and ``code``
            say which.
        ServerTimeout: no answer in ``timeout_seconds``.
        ServerUnreachable: no connection, or it broke.
        ProtocolError: the answer is no completion.
        ValueError: the endpoint is no http or https URL.
        MissingExtra: the ``openai`` SDK is not installed.
    """
    with needs(_EXTRA, _WHAT):
        import openai
    endpoint = find_endpoint(api_base, api_key, os.environ)
    request: dict[str, Any] = {
        "model": endpoint.wire_model(model),
        "messages": [dict(message) for message in messages],
        **(params or {}),
    }
    if tools:
        request["tools"] = [dict(tool) for tool in tools]
    client = openai.AsyncOpenAI(
        base_url=endpoint.url,
        api_key=endpoint.key,
        max_retries=0,
        timeout=timeout_seconds,
        http_client=openai.DefaultAsyncHttpxClient(
            trust_env=not is_local(endpoint.url), follow_redirects=False
        ),
    )
    async with client:
        if response_format is None:
            return await _ask(client, endpoint, request, timeout_seconds)
        bound = {**request, "response_format": _their_form(response_format)}
        try:
            return await _ask(client, endpoint, bound, timeout_seconds)
        except ServerRefused as refusal:
            if refusal.status not in _SCHEMA_REFUSED:
                raise
        request["messages"] = in_words_too(request["messages"], response_format)
        return await _ask(client, endpoint, request, timeout_seconds)


async def _ask(
    client: openai.AsyncOpenAI,
    endpoint: Endpoint,
    request: Mapping[str, Any],
    timeout_seconds: float,
) -> Completion:
    import openai

    place = f"model {request['model']!r} at {shown(endpoint.url)}"
    try:
        with anyio.fail_after(timeout_seconds):
            answer = await client.chat.completions.create(**request)
    except (TimeoutError, openai.APITimeoutError) as error:
        raise ServerTimeout(
            f"{place}: no answer in {timeout_seconds:g} s", url=endpoint.url
        ) from error
    except openai.APIConnectionError as error:
        raise ServerUnreachable(
            f"{place} cannot be reached: {in_words(error)}", url=endpoint.url
        ) from error
    except openai.APIStatusError as error:
        raise _refusal(error, place, endpoint) from error
    except (openai.OpenAIError, ValueError, TypeError) as error:
        raise ProtocolError(
            f"{place} answered no completion: {excerpt(str(error))}", url=endpoint.url
        ) from error
    try:
        return _read(answer, schema_used="response_format" in request)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        said = answer if isinstance(answer, str) else repr(answer)
        raise ProtocolError(
            f"{place} answered no completion: {excerpt(said)}", url=endpoint.url
        ) from error


def _refusal(
    error: openai.APIStatusError, place: str, endpoint: Endpoint
) -> ServerRefused:
    body = error.body
    fields: Mapping[str, Any] = body if isinstance(body, dict) else {}
    said = excerpt(str(fields.get("message") or error.response.text))
    said = said.replace(endpoint.key, "***")
    code = fields.get("code") or fields.get("type")
    hint = ""
    if error.status_code == 401 and endpoint.key == NO_KEY:
        hint = (
            " (no key was sent: keys of the environment go only to the endpoint that "
            "OPENAI_BASE_URL or LITELLM_BASE_URL names)"
        )
    return ServerRefused(
        f"{place} answered {error.status_code}: {said or '(nothing)'}{hint}",
        url=endpoint.url,
        status=error.status_code,
        code=code if isinstance(code, (str, int)) else None,
        body=said,
        retry_after_seconds=_retry_after(error.response.headers.get("retry-after")),
    )


def _retry_after(header: str | None) -> float | None:
    """Seconds; a date is left out, which few send."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def _read(answer: Any, *, schema_used: bool) -> Completion:
    """The parts of a completion. The SDK does not check what the endpoint sent."""
    raw: dict[str, Any] = answer.to_dict(mode="json")
    choice = raw["choices"][0]
    message = choice["message"]
    usage = raw.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Completion(
        text=_text(message.get("content")),
        tool_calls=tuple(_tool_call(call) for call in message.get("tool_calls") or ()),
        finish_reason=choice.get("finish_reason"),
        usage=Usage(
            input_tokens=_count(usage.get("prompt_tokens")),
            output_tokens=_count(usage.get("completion_tokens")),
            cached_input_tokens=_count(details.get("cached_tokens")),
        ),
        model=str(raw.get("model") or ""),
        schema_used=schema_used,
        raw=raw,
    )


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    """Some endpoints give a call no ID, which its result must refer to."""
    arguments = call["function"].get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return ToolCall(
        id=str(call.get("id") or f"call_{uuid.uuid4().hex[:24]}"),
        name=_sendable(str(call["function"]["name"])),
        arguments=_sendable(arguments),
    )


def _text(content: object) -> str:
    """Some endpoints give a list of blocks where OpenAI gives a text."""
    if isinstance(content, list):
        content = "".join(
            block["text"]
            for block in content
            if isinstance(block, dict) and isinstance(block.get("text"), str)
        )
    return _sendable(content) if isinstance(content, str) else ""


def _sendable(text: str) -> str:
    """JSON can hold halves of characters (lone surrogates), and UTF-8 cannot."""
    return text.encode(errors="replace").decode()


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _their_form(response_format: Mapping[str, Any]) -> dict[str, Any]:
    if response_format.get("type") != "json_schema" or "schema" not in response_format:
        return dict(response_format)
    return {
        "type": "json_schema",
        "json_schema": {
            "name": response_format.get("name", "answer"),
            "schema": response_format["schema"],
        },
    }


def in_words_too(
    messages: Sequence[Mapping[str, Any]], response_format: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The messages, the last with the schema as text: some endpoints take no other way.

    It goes into the last message, because not every endpoint takes two of one role in a
    row, or a system message that is not the first. Pure.
    """
    inner = response_format.get("json_schema") or response_format
    words = "Answer with one JSON object and nothing else."
    if "schema" in inner:
        words += f" It must fit this JSON schema: {json.dumps(inner['schema'])}"
    told = [dict(message) for message in messages]
    content = told[-1].get("content") if told else None
    if isinstance(content, list):
        told[-1]["content"] = [*content, {"type": "text", "text": words}]
    elif told:
        told[-1]["content"] = f"{content or ''}\n\n{words}".strip()
    return told
