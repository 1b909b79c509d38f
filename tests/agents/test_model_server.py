"""The scripted model keeps to the wire formats: OpenAI's own SDK reads its answers."""

from __future__ import annotations

import json

import httpx
import openai
import pytest

from model_server import (
    CACHED_TOKENS,
    INPUT_TOKENS,
    KEY,
    MODEL,
    OUTPUT_TOKENS,
    Call,
    Fault,
    ModelServer,
    Run,
    Say,
    Scene,
    Together,
    Write,
)

SHELL = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "description": {"type": "string"}},
    "required": ["command", "description"],
}
SCENES = (
    Scene("list it", Run("ls -l", say="I look."), Say("There is nothing.")),
    Scene("both", Together((Run("pwd"), Call("shell", {"command": "id"}))), Say("ok")),
    Scene("once limited", Fault("rate_limit", times=1), Say("fine")),
    Scene("always limited", Fault("rate_limit"), Say("never")),
    Scene("breaks", Fault("cut"), Say("never to be read as a whole")),
    Scene("broken inside", Run("ls"), Fault("server_error"), Say("never")),
)


@pytest.fixture
def server():
    with ModelServer(*SCENES) as running:
        yield running
    assert running.unknown_paths == []


@pytest.fixture
def client(server: ModelServer):
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=KEY, max_retries=0
    ) as client:
        yield client


def chat_tools() -> list:
    return [{"type": "function", "function": {"name": "shell", "parameters": SHELL}}]


def _ask_chat(client: openai.OpenAI, messages: list, *, streams: bool):
    request = {"model": MODEL, "messages": messages, "tools": chat_tools()}
    if not streams:
        answer = client.chat.completions.create(**request)
        return answer.choices[0].message, answer.usage
    with client.chat.completions.stream(
        **request, stream_options={"include_usage": True}
    ) as stream:
        answer = stream.get_final_completion()
    return answer.choices[0].message, answer.usage


@pytest.mark.parametrize("streams", [False, True])
def test_chat_completions(client: openai.OpenAI, streams: bool) -> None:
    messages: list = [{"role": "user", "content": "please list it"}]
    first, usage = _ask_chat(client, messages, streams=streams)
    assert first.content == "I look."
    [call] = first.tool_calls
    assert call.function.name == "shell"
    assert json.loads(call.function.arguments) == {
        "command": "ls -l",
        "description": "scripted",
    }
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        INPUT_TOKENS,
        OUTPUT_TOKENS,
    )
    assert usage.prompt_tokens_details.cached_tokens == CACHED_TOKENS
    messages += [
        {"role": "assistant", "tool_calls": [call.model_dump(include=CALL_FIELDS)]},
        {"role": "tool", "tool_call_id": call.id, "content": "total 0"},
    ]
    second, _ = _ask_chat(client, messages, streams=streams)
    assert (second.content, second.tool_calls) == ("There is nothing.", None)


CALL_FIELDS = {"id", "type", "function"}


@pytest.mark.parametrize("streams", [False, True])
def test_responses(client: openai.OpenAI, streams: bool) -> None:
    tools = [{"type": "function", "name": "shell", "parameters": SHELL}]
    entries: list = [{"role": "user", "content": "please list it"}]

    def ask():
        request = {"model": MODEL, "input": entries, "tools": tools}
        if not streams:
            return client.responses.create(**request)
        with client.responses.stream(**request) as stream:
            return stream.get_final_response()

    first = ask()
    message, call = first.output
    assert first.output_text == "I look."
    assert message.type == "message"
    assert (call.type, call.name) == ("function_call", "shell")
    assert json.loads(call.arguments)["command"] == "ls -l"
    assert first.usage.input_tokens_details.cached_tokens == CACHED_TOKENS
    entries += [
        message.model_dump(include={"type", "role", "content", "id", "status"}),
        call.model_dump(include={"type", "call_id", "name", "arguments"}),
        {"type": "function_call_output", "call_id": call.call_id, "output": "total 0"},
    ]
    assert ask().output_text == "There is nothing."


def _events(text: str) -> list[dict]:
    return [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: ")
    ]


def test_messages_whole_and_streamed_say_the_same(server: ModelServer) -> None:
    request = {
        "model": MODEL,
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be good."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "both"}]}],
        "tools": [{"name": "shell", "input_schema": SHELL}],
    }
    headers = {"x-api-key": KEY}
    url = f"{server.url}/v1/messages"
    whole = httpx.post(url, json=request, headers=headers).json()
    assert [block["input"]["command"] for block in whole["content"]] == ["pwd", "id"]
    assert whole["stop_reason"] == "tool_use"
    used = whole["usage"]
    assert used["input_tokens"] + used["cache_read_input_tokens"] == INPUT_TOKENS
    events = _events(
        httpx.post(url, json=request | {"stream": True}, headers=headers).text
    )
    streamed = {0: "", 1: ""}
    for event in events:
        if event["type"] == "content_block_delta":
            streamed[event["index"]] += event["delta"]["partial_json"]
    assert [json.loads(text)["command"] for text in streamed.values()] == ["pwd", "id"]
    assert events[0]["message"]["usage"]["cache_read_input_tokens"] == CACHED_TOKENS
    assert events[-2]["usage"] == {"output_tokens": OUTPUT_TOKENS}
    assert server.requests[0].texts("system") == ["Be good."]
    del request["max_tokens"]
    assert httpx.post(url, json=request, headers=headers).status_code == 400


def test_generate_content_whole_and_streamed_say_the_same(server: ModelServer) -> None:
    request = {
        "contents": [{"role": "user", "parts": [{"text": "please list it"}]}],
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "run_shell_command", "parametersJsonSchema": SHELL}
                ]
            }
        ],
    }
    headers = {"x-goog-api-key": KEY}
    url = f"{server.url}/v1beta/models/{MODEL}"
    whole = httpx.post(f"{url}:generateContent", json=request, headers=headers).json()
    parts = whole["candidates"][0]["content"]["parts"]
    assert parts[0] == {"text": "I look."}
    assert parts[1]["functionCall"]["args"]["command"] == "ls -l"
    streamed = _events(
        httpx.post(
            f"{url}:streamGenerateContent?alt=sse", json=request, headers=headers
        ).text
    )
    texts = [
        part.get("text", "")
        for event in streamed
        for part in event["candidates"][0]["content"]["parts"]
    ]
    assert "".join(texts) == "I look."
    assert streamed[-1]["usageMetadata"]["promptTokenCount"] == INPUT_TOKENS
    request["contents"] += [
        {"role": "model", "parts": parts},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "x", "response": {"output": ""}}}],
        },
    ]
    last = httpx.post(f"{url}:generateContent", json=request, headers=headers).json()
    assert last["candidates"][0]["content"]["parts"] == [{"text": "There is nothing."}]


def _user(text: str) -> list:
    return [{"role": "user", "content": text}]


def test_the_key_is_checked(server: ModelServer) -> None:
    with (
        openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="sk-wrong", max_retries=0
        ) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        _ask_chat(client, _user("list it"), streams=False)
    assert server.requests == []


def test_faults_come_as_often_as_the_script_says(
    client: openai.OpenAI, server: ModelServer
) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        _ask_chat(client, _user("once limited"), streams=False)
    assert caught.value.response.headers["retry-after"] == "0"
    answer, _ = _ask_chat(client, _user("once limited"), streams=False)
    assert answer.content == "fine"
    for _ in range(3):
        with pytest.raises(openai.RateLimitError):
            _ask_chat(client, _user("always limited"), streams=False)
    assert len(server.turns) == 5


def test_a_fault_waits_for_its_place(client: openai.OpenAI) -> None:
    messages = _user("broken inside")
    first, _ = _ask_chat(client, messages, streams=False)
    [call] = first.tool_calls
    messages += [
        {"role": "assistant", "tool_calls": [call.model_dump(include=CALL_FIELDS)]},
        {"role": "tool", "tool_call_id": call.id, "content": ""},
    ]
    with pytest.raises(openai.InternalServerError):
        _ask_chat(client, messages, streams=False)


@pytest.mark.parametrize("streams", [False, True])
def test_a_cut_answer_is_no_answer(client: openai.OpenAI, streams: bool) -> None:
    with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
        _ask_chat(client, _user("breaks"), streams=streams)


def test_the_latest_instruction_counts_and_all_are_recorded(
    client: openai.OpenAI, server: ModelServer
) -> None:
    messages = [
        *_user("please list it"),
        {"role": "assistant", "content": "There is nothing."},
        *_user("once limited"),
    ]
    with pytest.raises(openai.RateLimitError):
        _ask_chat(client, messages, streams=False)
    assert server.turns[-1].texts("user") == ["please list it", "once limited"]


def test_an_aside_gets_a_title_and_no_scene(
    client: openai.OpenAI, server: ModelServer
) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=_user("list it"))
    assert answer.choices[0].message.content == "A scripted title"
    assert server.turns == []


def test_what_the_script_does_not_know_is_a_problem(
    client: openai.OpenAI, server: ModelServer
) -> None:
    with pytest.raises(openai.BadRequestError):
        _ask_chat(client, _user("sing"), streams=False)
    assert server.problems == ["no scene for this conversation"]


def test_a_file_is_written_by_the_tool_that_is_there() -> None:
    write = {
        "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["file_path", "content"],
    }
    offered = {"type": "function", "function": {"name": "write", "parameters": write}}
    act = Write("a/b.txt", "it's\n")
    with (
        ModelServer(Scene("go", act)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client,
    ):
        calls = [
            client.chat.completions.create(
                model=MODEL, messages=_user("go"), tools=tools
            )
            .choices[0]
            .message.tool_calls[0]
            .function
            for tools in ([offered, *chat_tools()], chat_tools())
        ]
    assert (calls[0].name, json.loads(calls[0].arguments)) == (
        "write",
        {"file_path": "a/b.txt", "content": "it's\n"},
    )
    assert calls[1].name == "shell"
    command = json.loads(calls[1].arguments)["command"]
    assert command == "printf %s 'it'\"'\"'s\n' > a/b.txt"


def test_a_hanging_answer_ends_with_the_server() -> None:
    with ModelServer(Scene("hang", Fault("hang"), Say("never"))) as server:
        with (
            openai.OpenAI(
                base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=0.3
            ) as client,
            pytest.raises(openai.APITimeoutError),
        ):
            _ask_chat(client, _user("hang"), streams=False)
        assert len(server.turns) == 1
