"""Gemini's generateContent: ``POST /v1beta/models/<model>:[stream]generateContent``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from model_server.conversation import Message, Request, Tool
from model_server.script import Answer
from model_server.usage import Usage

PATH = re.compile(
    r"/v1(?:beta|alpha)?/models/([^:/]+):(generateContent|streamGenerateContent)$"
)


def read(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Request:
    """Raises ``KeyError`` for a field that the API needs."""
    found = PATH.match(path)
    assert found is not None
    conversation: list[Message] = []
    system = body.get("systemInstruction") or body.get("system_instruction")
    if system:
        parts = system.get("parts") if isinstance(system, dict) else system
        conversation.append(Message("system", _text(parts or ())))
    for place, entry in enumerate(body["contents"]):
        conversation += _entries(entry, place)
    return Request(
        path=path,
        model=found[1],
        streams=found[2] == "streamGenerateContent",
        conversation=tuple(conversation),
        tools=tuple(
            Tool(
                declared["name"],
                _plain(
                    declared.get("parametersJsonSchema")
                    or declared.get("parameters")
                    or {"properties": {}}
                ),
            )
            for tool in body.get("tools") or ()
            for declared in tool.get("functionDeclarations") or ()
        ),
        body=body,
        headers=headers,
    )


def _plain(schema: Any) -> Any:
    """Gemini writes types in capitals."""
    if isinstance(schema, dict):
        return {
            name: value.lower()
            if name == "type" and isinstance(value, str)
            else _plain(value)
            for name, value in schema.items()
        }
    return [_plain(entry) for entry in schema] if isinstance(schema, list) else schema


def _entries(entry: Mapping[str, Any], place: int) -> Iterator[Message]:
    parts = entry.get("parts") or ()
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    if entry.get("role") == "model":
        yield Message(
            "assistant",
            _text(parts),
            calls=tuple(call["name"] for call in calls),
            call_ids=tuple(f"{place}_{number}" for number in range(len(calls))),
        )
        return
    for part in parts:
        if "functionResponse" in part:
            yield Message("tool", json.dumps(part["functionResponse"].get("response")))
    if text := _text(parts):
        yield Message("user", text)


def _text(parts: Any) -> str:
    return "\n".join(part["text"] for part in parts if part.get("text"))


def whole(answer: Answer, request: Request, usage: Usage, number: int) -> dict:
    parts: list[dict[str, Any]] = [{"text": answer.text}] if answer.text else []
    parts += [
        {
            "functionCall": {
                "id": call.call_id,
                "name": call.name,
                "args": dict(call.arguments),
            }
        }
        for call in answer.calls
    ]
    return {
        "candidates": [
            {
                "content": {"role": "model", "parts": parts},
                "finishReason": "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": {
            "promptTokenCount": usage.input_tokens,
            "candidatesTokenCount": usage.output_tokens,
            "cachedContentTokenCount": usage.cached_tokens,
            "totalTokenCount": usage.input_tokens + usage.output_tokens,
        },
        "modelVersion": request.model,
        "responseId": f"response-{number}",
    }


def stream(
    answer: Answer, request: Request, usage: Usage, number: int
) -> Iterator[bytes]:
    half = len(answer.text) // 2
    if half:
        first = whole(Answer(answer.text[:half]), request, usage, number)
        del first["candidates"][0]["finishReason"]
        del first["usageMetadata"]
        yield _event(first)
    rest = Answer(answer.text[half:], answer.calls)
    yield _event(whole(rest, request, usage, number))


def error(status: int, kind: str, message: str) -> dict:
    names = {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        429: "RESOURCE_EXHAUSTED",
        503: "UNAVAILABLE",
    }
    return {
        "error": {
            "code": status,
            "message": message,
            "status": names.get(status, "INTERNAL"),
        }
    }


def _event(data: dict) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\r\n\r\n"
