"""OpenAI's responses: ``POST /v1/responses``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from model_server.conversation import Message, Request, Tool, join_text
from model_server.script import Answer, ToolCall
from model_server.usage import Usage

CALLS = ("function_call", "custom_tool_call", "local_shell_call")
LOCAL_SHELL = {
    "properties": {"command": {"type": "array"}},
    "required": ["command"],
}


def read(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Request:
    """Raises ``KeyError`` for a field that the API needs."""
    given = body["input"]
    entries = (
        [{"type": "message", "role": "user", "content": given}]
        if isinstance(given, str)
        else given
    )
    conversation = [found for entry in entries if (found := _message(entry))]
    if body.get("instructions"):
        conversation.insert(0, Message("system", body["instructions"]))
    offered = (
        {**inner, "namespace": tool["name"]}
        if tool.get("type") == "namespace"
        else inner
        for tool in body.get("tools") or ()
        for inner in tool.get("tools", [tool])
    )
    tools = (_tool(tool) for tool in offered)
    return Request(
        path=path,
        model=body["model"],
        streams=bool(body.get("stream")),
        conversation=tuple(conversation),
        tools=tuple(tool for tool in tools if tool is not None),
        body=body,
        headers=headers,
    )


def _tool(tool: Mapping[str, Any]) -> Tool | None:
    kind = tool.get("type")
    if kind == "function":
        schema = tool.get("parameters") or {"properties": {}}
        return Tool(tool["name"], schema, tool.get("namespace", ""))
    if kind == "custom":
        return Tool(tool["name"], {})
    if kind == "local_shell":
        return Tool("local_shell", LOCAL_SHELL)
    return None


def _message(entry: Mapping[str, Any]) -> Message | None:
    kind = entry.get("type", "message")
    if kind == "message":
        role = {"developer": "system"}.get(entry["role"], entry["role"])
        return Message(role, join_text(entry.get("content")))
    if kind in CALLS:
        return Message(
            "assistant",
            "",
            calls=(entry.get("name", kind),),
            call_ids=(entry["call_id"],),
        )
    if kind.endswith("_output"):
        return Message("tool", join_text(entry.get("output")))
    return None


def whole(answer: Answer, request: Request, usage: Usage, number: int) -> dict:
    return _response(request, number, "completed", _items(answer, number), usage)


def stream(
    answer: Answer, request: Request, usage: Usage, number: int
) -> Iterator[bytes]:
    sequence = 0

    def event(kind: str, **fields: Any) -> bytes:
        nonlocal sequence
        data = {"type": kind, "sequence_number": sequence, **fields}
        sequence += 1
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()

    opened = _response(request, number, "in_progress", [], None)
    yield event("response.created", response=opened)
    yield event("response.in_progress", response=opened)
    items = _items(answer, number)
    for place, item in enumerate(items):
        at = {"output_index": place, "item_id": item["id"]}
        if item["type"] == "message":
            empty = {**item, "status": "in_progress", "content": []}
        else:
            what = "arguments" if item["type"] == "function_call" else "input"
            empty = {**item, "status": "in_progress", what: ""}
        yield event("response.output_item.added", output_index=place, item=empty)
        if item["type"] == "message":
            part = item["content"][0]
            at["content_index"] = 0
            yield event("response.content_part.added", part={**part, "text": ""}, **at)
            half = len(part["text"]) // 2
            for piece in (part["text"][:half], part["text"][half:]):
                yield event(
                    "response.output_text.delta", delta=piece, logprobs=[], **at
                )
            yield event(
                "response.output_text.done", text=part["text"], logprobs=[], **at
            )
            yield event("response.content_part.done", part=part, **at)
        elif item["type"] == "function_call":
            text = item["arguments"]
            for piece in (text[:7], text[7:]):
                yield event("response.function_call_arguments.delta", delta=piece, **at)
            yield event(
                "response.function_call_arguments.done",
                arguments=text,
                name=item["name"],
                **at,
            )
        else:
            text = item["input"]
            yield event("response.custom_tool_call_input.delta", delta=text, **at)
            yield event("response.custom_tool_call_input.done", input=text, **at)
        yield event("response.output_item.done", output_index=place, item=item)
    done = _response(request, number, "completed", items, usage)
    yield event("response.completed", response=done)


def error(status: int, kind: str, message: str) -> dict:
    code = {429: "rate_limit_exceeded", 401: "invalid_api_key"}.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _items(answer: Answer, number: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.text:
        items.append(
            {
                "type": "message",
                "id": f"msg_{number}",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {
                        "type": "output_text",
                        "text": answer.text,
                        "annotations": [],
                        "logprobs": [],
                    }
                ],
            }
        )
    return items + [_call(call) for call in answer.calls]


def _call(call: ToolCall) -> dict[str, Any]:
    item: dict[str, Any] = {
        "id": f"fc_{call.call_id}",
        "call_id": call.call_id,
        "name": call.name,
        "status": "completed",
    }
    if call.namespace:
        item["namespace"] = call.namespace
    if call.free_text is not None:
        return {**item, "type": "custom_tool_call", "input": call.free_text}
    return {
        **item,
        "type": "function_call",
        "arguments": json.dumps(call.arguments),
    }


def _response(
    request: Request,
    number: int,
    status: str,
    items: list[dict[str, Any]],
    usage: Usage | None,
) -> dict[str, Any]:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_800_000_000 + number,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": request.body.get("instructions"),
        "model": request.model,
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 1.0,
        "top_p": 1.0,
        "metadata": {},
        "usage": usage
        and {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    }
