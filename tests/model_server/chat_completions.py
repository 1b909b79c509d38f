"""OpenAI's chat completions: ``POST /v1/chat/completions``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from model_server.conversation import Message, Request, Tool, join_text
from model_server.script import Answer
from model_server.usage import Usage

ROLES = {"developer": "system", "function": "tool"}


def read(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Request:
    """Raises ``KeyError`` for a field that the API needs."""
    tools = tuple(
        Tool(tool["function"]["name"], tool["function"].get("parameters") or {})
        for tool in body.get("tools") or ()
        if tool.get("type") == "function"
    )
    return Request(
        path=path,
        model=body["model"],
        streams=bool(body.get("stream")),
        conversation=tuple(_message(entry) for entry in body["messages"]),
        tools=tools,
        body=body,
        headers=headers,
    )


def _message(entry: Mapping[str, Any]) -> Message:
    calls = entry.get("tool_calls") or ()
    role = entry["role"]
    return Message(
        role=ROLES.get(role, role),
        text=join_text(entry.get("content")),
        calls=tuple(call["function"]["name"] for call in calls),
        call_ids=tuple(call["id"] for call in calls),
    )


def whole(answer: Answer, request: Request, usage: Usage, number: int) -> dict:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = _calls(answer)
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_800_000_000 + number,
        "model": request.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if answer.calls else "stop",
                "logprobs": None,
            }
        ],
        "usage": _usage(usage),
    }


def stream(
    answer: Answer, request: Request, usage: Usage, number: int
) -> Iterator[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    half = len(answer.text) // 2
    deltas += [
        {"content": part} for part in (answer.text[:half], answer.text[half:]) if part
    ]
    for place, call in enumerate(_calls(answer)):
        arguments = call["function"]["arguments"]
        opened = {**call, "index": place}
        opened["function"] = {"name": call["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [opened]})
        for part in (arguments[:7], arguments[7:]):
            deltas.append(
                {"tool_calls": [{"index": place, "function": {"arguments": part}}]}
            )
    for delta in deltas:
        yield _event(_chunk(request, number, delta, None))
    yield _event(_chunk(request, number, {}, "tool_calls" if answer.calls else "stop"))
    if (request.body.get("stream_options") or {}).get("include_usage"):
        last = _chunk(request, number, {}, None)
        yield _event({**last, "choices": [], "usage": _usage(usage)})
    yield b"data: [DONE]\n\n"


def error(status: int, kind: str, message: str) -> dict:
    code = {429: "rate_limit_exceeded", 401: "invalid_api_key"}.get(status)
    if "context window" in message:
        code = "context_length_exceeded"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in answer.calls
    ]


def _chunk(request: Request, number: int, delta: dict, reason: str | None) -> dict:
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": 1_800_000_000 + number,
        "model": request.model,
        "choices": [
            {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        ],
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _event(data: dict) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
