"""Anthropic's messages: ``POST /v1/messages``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from model_server.conversation import Message, Request, Tool, join_text
from model_server.script import Answer
from model_server.usage import Usage


def read(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Request:
    """Raises ``KeyError`` for a field that the API needs."""
    _ = body["max_tokens"]
    conversation: list[Message] = []
    if body.get("system"):
        conversation.append(Message("system", join_text(body["system"])))
    for entry in body["messages"]:
        conversation += _entries(entry)
    return Request(
        path=path,
        model=body["model"],
        streams=bool(body.get("stream")),
        conversation=tuple(conversation),
        tools=tuple(
            Tool(tool["name"], tool.get("input_schema") or {"properties": {}})
            for tool in body.get("tools") or ()
        ),
        body=body,
        headers=headers,
    )


def _entries(entry: Mapping[str, Any]) -> Iterator[Message]:
    content = entry["content"]
    blocks = [content] if isinstance(content, str) else content
    if entry["role"] != "user":
        calls = [block for block in blocks if _kind(block) == "tool_use"]
        texts = [block for block in blocks if _kind(block) == "text"]
        role = "assistant" if entry["role"] == "assistant" else "system"
        yield Message(
            role,
            join_text(texts),
            calls=tuple(call["name"] for call in calls),
            call_ids=tuple(call["id"] for call in calls),
        )
        return
    results = [block for block in blocks if _kind(block) == "tool_result"]
    for block in results:
        yield Message("tool", join_text(block.get("content")))
    rest = [block for block in blocks if _kind(block) == "text"]
    if rest:
        yield Message("user", join_text(rest))


def _kind(block: object) -> str:
    return block.get("type", "") if isinstance(block, dict) else "text"


def whole(answer: Answer, request: Request, usage: Usage, number: int) -> dict:
    return {
        **_head(request, number),
        "content": _blocks(answer),
        "stop_reason": _reason(answer),
        "usage": _usage(usage, usage.output_tokens),
    }


def stream(
    answer: Answer, request: Request, usage: Usage, number: int
) -> Iterator[bytes]:
    head = {**_head(request, number), "content": [], "usage": _usage(usage, 1)}
    yield _event("message_start", message=head)
    yield _event("ping")
    for place, block in enumerate(_blocks(answer)):
        if block["type"] == "text":
            half = len(block["text"]) // 2
            opened = {"type": "text", "text": ""}
            deltas = [
                {"type": "text_delta", "text": part}
                for part in (block["text"][:half], block["text"][half:])
            ]
        else:
            text = json.dumps(block["input"])
            opened = {**block, "input": {}}
            deltas = [
                {"type": "input_json_delta", "partial_json": part}
                for part in ("", text[:7], text[7:])
            ]
        yield _event("content_block_start", index=place, content_block=opened)
        for delta in deltas:
            yield _event("content_block_delta", index=place, delta=delta)
        yield _event("content_block_stop", index=place)
    yield _event(
        "message_delta",
        delta={"stop_reason": _reason(answer), "stop_sequence": None},
        usage={"output_tokens": usage.output_tokens},
    )
    yield _event("message_stop")


def error(status: int, kind: str, message: str) -> dict:
    names = {
        400: "invalid_request_error",
        401: "authentication_error",
        404: "not_found_error",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    return {
        "type": "error",
        "error": {"type": names.get(status, "api_error"), "message": message},
        "request_id": f"req_{kind}",
    }


def _head(request: Request, number: int) -> dict[str, Any]:
    return {
        "id": f"msg_{number:024d}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    return blocks + [
        {
            "type": "tool_use",
            "id": call.call_id,
            "name": call.name,
            "input": dict(call.arguments),
        }
        for call in answer.calls
    ]


def _reason(answer: Answer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def _usage(usage: Usage, output_tokens: int) -> dict[str, Any]:
    """Anthropic counts tokens from the cache apart."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
