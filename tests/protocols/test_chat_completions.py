"""A model behind a chat-completions endpoint, on a real socket."""

from __future__ import annotations

import pytest

from pytest_harbor.errors import (
    ProtocolError,
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
)
from pytest_harbor.protocols.chat_completions import (
    OPENAI_URL,
    ToolCall,
    Usage,
    complete,
    find_endpoint,
    in_words_too,
)
from servers.rubbish import misbehaving
from servers.running import serving
from servers.scripted_model import Model

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"score": {"type": "number"}}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
ASKED = [{"role": "user", "content": "Grade it."}]


@pytest.fixture(scope="module")
def server():
    model = Model()
    with serving(model.app()) as url:
        yield model, f"{url}/v1"


@pytest.fixture
def model(server):
    model, _ = server
    model.answers, model.requests, model.keys = [], [], []
    return model


@pytest.fixture
def ask(server):
    async def ask(name="openai/judge-small", messages=ASKED, **options):
        options.setdefault("timeout_seconds", 10)
        return await complete(name, messages, api_base=server[1], **options)

    return ask


async def test_text_and_usage(model, ask):
    model.answers = ["fine"]
    completion = await ask(api_key="k1", params={"temperature": 0})
    assert (completion.text, completion.finish_reason) == ("fine", "stop")
    assert completion.usage == Usage(11, 5, 8)
    assert completion.model == "served-model"
    assert model.requests == [
        {"model": "judge-small", "messages": ASKED, "temperature": 0}
    ]
    assert model.keys == ["k1"]


async def test_tool_calls(model, ask):
    call = {"name": "search", "arguments": '{"q": 1}'}
    model.answers = [
        {
            "content": None,
            "tool_calls": [{"id": "t1", "type": "function", "function": call}],
        }
    ]
    tools = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
    completion = await ask(tools=tools)
    assert completion.text == ""
    assert completion.tool_calls == (ToolCall("t1", "search", '{"q": 1}'),)
    assert model.requests[0]["tools"] == tools


async def test_schema(model, ask):
    model.answers = ['{"score": 1}']
    completion = await ask(response_format=FORMAT)
    assert completion.schema_used
    assert model.requests[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": SCHEMA},
    }


async def test_refused_schema_goes_in_words(model, ask):
    refusal = {"error": {"message": "response_format is not supported"}}
    model.answers = [(400, refusal), '{"score": 1}']
    completion = await ask(response_format=FORMAT)
    assert not completion.schema_used
    assert completion.text == '{"score": 1}'
    again = model.requests[1]
    assert "response_format" not in again
    assert again["messages"][0]["content"].startswith(
        "Grade it.\n\nAnswer with one JSON"
    )
    assert '"score"' in again["messages"][0]["content"]


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_nothing_else_is_tried_again(model, ask, status):
    model.answers = [(status, {"error": {"message": "no", "code": "c7"}})]
    with pytest.raises(ServerRefused, match=f"answered {status}: no") as caught:
        await ask(response_format=FORMAT)
    assert (caught.value.status, caught.value.code) == (status, "c7")
    assert len(model.requests) == 1


async def test_key_in_an_error_is_masked(model, ask):
    model.answers = [(401, {"error": {"message": "bad key sk-secret-1 given"}})]
    with pytest.raises(ServerRefused) as caught:
        await ask(api_key="sk-secret-1")
    assert "sk-secret-1" not in f"{caught.value} {caught.value.body}"


async def test_no_key_is_said(model, ask, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-person")
    model.answers = [(401, {"error": {"message": "who are you"}})]
    with pytest.raises(ServerRefused, match="no key was sent"):
        await ask()
    assert model.keys == ["none"]


@pytest.fixture(scope="module")
def rogue():
    with misbehaving() as (url, _):
        yield url


@pytest.mark.parametrize(
    ("way", "kind", "message"),
    [
        ("html", ProtocolError, "no completion: .*Welcome to nginx"),
        ("half", ProtocolError, "no completion"),
        ("array", ProtocolError, "no completion"),
        ("nothing", ProtocolError, "no completion"),
        ("redirect", ServerRefused, "answered 307"),
        ("status500", ServerRefused, "answered 500: stack trace"),
        ("never", ServerTimeout, "no answer in 0.3 s"),
        ("drip", ServerTimeout, "no answer in 0.3 s"),
        ("hang_up", ServerUnreachable, "cannot be reached"),
    ],
)
async def test_rubbish(rogue, way, kind, message):
    limit = 0.3 if kind is ServerTimeout else 20
    with pytest.raises(kind, match=message) as caught:
        await complete("m", ASKED, api_base=f"{rogue}/{way}", timeout_seconds=limit)
    assert type(caught.value) is kind


async def test_nobody_there(free_url):
    with pytest.raises(ServerUnreachable, match="Connection refused"):
        await complete("m", ASKED, api_base=free_url, timeout_seconds=5)


OPENAI = {"OPENAI_API_KEY": "ko"}
PROXY = {"LITELLM_BASE_URL": "http://proxy:4000", "LITELLM_API_KEY": "kl"}


@pytest.mark.parametrize(
    ("base", "key", "environ", "url", "used"),
    [
        (None, None, OPENAI, OPENAI_URL, "ko"),
        (None, None, {}, OPENAI_URL, "none"),
        (None, "k", OPENAI, OPENAI_URL, "k"),
        (None, None, PROXY, "http://proxy:4000", "kl"),
        (None, None, PROXY | OPENAI, "http://proxy:4000", "kl"),
        (None, None, {"LITELLM_API_KEY": "kl"}, OPENAI_URL, "kl"),
        (
            None,
            None,
            OPENAI | {"OPENAI_BASE_URL": "http://v:1/v1"},
            "http://v:1/v1",
            "ko",
        ),
        ("http://proxy:4000/v1", None, PROXY, "http://proxy:4000/v1", "kl"),
        (
            "https://evil.example/v1",
            None,
            OPENAI | PROXY,
            "https://evil.example/v1",
            "none",
        ),
        ("https://evil.example/v1", "k", OPENAI, "https://evil.example/v1", "k"),
    ],
)
async def test_where_a_call_goes(base, key, environ, url, used):
    endpoint = find_endpoint(base, key, environ)
    assert (endpoint.url, endpoint.key) == (url, used)


async def test_names_on_the_wire():
    direct, proxy = find_endpoint(None, None, {}), find_endpoint(None, None, PROXY)
    assert direct.wire_model("openai/judge-small") == "judge-small"
    assert direct.wire_model("meta/llama") == "meta/llama"
    assert proxy.wire_model("openai/judge-small") == "openai/judge-small"


async def test_schema_in_words_keeps_blocks():
    blocks = [{"type": "text", "text": "Grade it."}]
    told = in_words_too([{"role": "user", "content": blocks}], FORMAT)
    assert told[0]["content"][0] == blocks[0]
    assert "JSON schema" in told[0]["content"][1]["text"]
    assert len(blocks) == 1
