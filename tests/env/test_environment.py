"""Environments as authors write them, over real sockets (spec 11)."""

from __future__ import annotations

import base64
import threading
from typing import Annotated

import anyio
import httpx
import pytest
from pydantic import BaseModel, Field

from pytest_harbor.env import Environment, ToolError, read_bytes, read_json
from pytest_harbor.errors import ServerRefused
from pytest_harbor.protocols import data_plane, mcp
from pytest_harbor.protocols.data_plane import DataPlane

pytestmark = pytest.mark.anyio


class Mail(BaseModel):
    subject: str
    read: bool = False


class Box(BaseModel):
    inbox: list[Mail] = []
    owner: str = "nobody"


def mail_env():
    env = Environment(
        "mail", state={"inbox": [], "sent": [], "options": {"color": "red"}}
    )

    @env.tool
    def email_search(query: str, limit: Annotated[int, Field(ge=1)] = 10) -> list[dict]:
        """Messages that hold the query.

        All folders are searched.
        """
        return [m for m in env.state["inbox"] if query in str(m)][:limit]

    @env.tool(name="send", description="Send a message.")
    async def send_message(to: str, text: str) -> str:
        if "@" not in to:
            raise ToolError(f"{to} is no address")
        env.state["sent"].append({"to": to, "text": text})
        return "sent"

    @env.tool
    def broken() -> str:
        return env.state["nothing"]

    return env


@pytest.fixture(scope="module")
def served():
    env = mail_env()
    with env.serving() as base:
        yield env, base


@pytest.fixture
def env(served):
    served[0].reset()
    return served[0]


@pytest.fixture
def url(served, env):
    return served[1]


@pytest.fixture
async def plane(url):
    async with DataPlane(f"{url}/agentenv") as plane:
        yield plane


async def test_card(url):
    card = await data_plane.read_card(url)
    assert card.raw["name"] == "mail"
    assert {**card.raw, "capabilities": None} == {
        "name": "mail",
        "protocolVersion": "1.0",
        "url": "/agentenv",
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [{"url": "/mcp", "transport": "mcp"}],
        "capabilities": None,
    }
    assert card.operations == {"data/reset", "data/add", "data/get"}
    search, send, _ = card.tools
    assert search["description"].startswith("Messages that hold the query.\n\nAll fold")
    assert search["inputSchema"]["properties"]["limit"]["minimum"] == 1
    assert search["inputSchema"]["required"] == ["query"]
    assert (send["name"], send["description"]) == ("send", "Send a message.")


async def test_tools(url, env):
    async with mcp.connect(f"{url}/mcp") as session:
        assert session.server_name == "mail"
        assert [t.name for t in await session.list_tools()] == [
            "email_search",
            "send",
            "broken",
        ]
        sent = await session.call_tool("send", {"to": "a@b", "text": "hi"})
        assert (sent.text, sent.is_error) == ("sent", False)
        found = await session.call_tool("email_search", {"query": "x"})
        assert found.structured == {"result": []}
    assert env.state["sent"] == [{"to": "a@b", "text": "hi"}]


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("send", {"to": "bob", "text": ""}, "bob is no address"),
        ("send", {"to": "a@b"}, "text\n  Field required"),
        ("email_search", {"query": "x", "limit": 0}, "greater than or equal to 1"),
        ("email_search", {"query": "x", "limit": "many"}, "valid integer"),
        ("broken", {}, "KeyError: 'nothing'"),
    ],
)
async def test_what_the_agent_reads_of_a_failure(url, tool, arguments, message):
    async with mcp.connect(f"{url}/mcp") as session:
        result = await session.call_tool(tool, arguments)
    assert result.is_error
    assert message in result.text


def file_part(content, **more):
    encoded = base64.b64encode(content.encode()).decode()
    return {"kind": "file", "file": {"bytes": encoded, **more}}


async def test_data_comes_as_part_of_every_kind(plane, env, tmp_path):
    file = tmp_path / "in box.json"
    file.write_text('{"inbox": [4]}')
    await plane.add([{"kind": "data", "data": {"inbox": [1]}}])
    await plane.add(
        [
            {"kind": "text", "text": '{"inbox": [2]}'},
            file_part('{"inbox": [3]}', name="a.json"),
            {"kind": "file", "file": {"uri": file.as_uri()}},
        ]
    )
    assert env.state["inbox"] == [1, 2, 3, 4]
    state = {"inbox": [1, 2, 3, 4], "sent": [], "options": {"color": "red"}}
    assert await plane.get() == ({"kind": "data", "data": state},)
    await plane.reset()
    assert env.state == {"inbox": [], "sent": [], "options": {"color": "red"}}


async def test_file_by_http(plane, env):
    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"inbox": [9]}'})

    from servers.running import serving

    with serving(answer) as files:
        await plane.add([data_plane.uri_part(f"{files}/x.json")])
    assert env.state["inbox"] == [9]


async def test_objects_are_merged_and_values_replaced(plane, env):
    await plane.add([{"kind": "data", "data": {"options": {"size": 3}}}])
    await plane.add([{"kind": "data", "data": {"options": {"color": "blue"}}}])
    assert env.state["options"] == {"color": "blue", "size": 3}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"kind": "data", "data": {"inbx": []}}, "no 'inbx'; did you mean 'inbox'?"),
        (
            {"kind": "data", "data": {"inbox": {}}},
            "inbox is a list, the data has an obj",
        ),
        (
            {"kind": "data", "data": {"options": {"color": 3}}},
            "options.color is a string",
        ),
        ({"kind": "text", "text": "[1]"}, "no JSON object"),
        ({"kind": "text", "text": "hello"}, "the text is no JSON"),
        (file_part("{", name="a.json"), "a.json is no JSON"),
        ({"kind": "file", "file": {"bytes": "%%"}}, "not base64"),
        ({"kind": "file", "file": {"uri": "file:///not/there"}}, "cannot be read"),
        ({"kind": "file", "file": {"uri": "ftp://h/x"}}, "cannot be read"),
    ],
)
async def test_data_that_does_not_fit(plane, env, part, message):
    good = {"kind": "data", "data": {"inbox": [1]}}
    with pytest.raises(ServerRefused) as caught:
        await plane.add([good, part])
    assert message in caught.value.body
    assert "BadPart" not in caught.value.body
    assert caught.value.code == "add_failed"
    assert env.state["inbox"] == []  # all or nothing


RPC = {"jsonrpc": "2.0", "id": 1}


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b"{", -32700, "no JSON"),
        (b"[" * 50_000, -32700, "no JSON"),
        ([RPC | {"method": "data/get"}], -32600, "no JSON-RPC 2.0"),
        ({"id": 1, "method": "data/get"}, -32600, "no JSON-RPC 2.0"),
        (RPC | {"method": 7}, -32600, "`id` or `method`"),
        ({"jsonrpc": "2.0", "method": "data/get"}, -32600, "`id` or `method`"),
        (RPC | {"method": "data/put"}, -32601, "there are: data/reset, data/add"),
        (RPC | {"method": "data/get", "params": []}, -32602, "`params` is no object"),
        (RPC | {"method": "data/add"}, -32602, "at least one part"),
        (RPC | {"method": "data/add", "params": {"parts": []}}, -32602, "at least one"),
        (
            RPC
            | {
                "method": "data/add",
                "params": {"parts": [{"kind": "text", "text": "{}"}, {}]},
            },
            -32602,
            "part 2 is no data, text or file part",
        ),
    ],
)
async def test_refused_requests(url, body, code, message):
    content = body if isinstance(body, bytes) else None
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(
            f"{url}/agentenv", content=content, json=None if content else body
        )
    assert answer.status_code == 200
    error = answer.json()["error"]
    assert error["code"] == code
    assert message in error["message"]


async def test_pydantic_state():
    env = Environment("box", state=Box(owner="eve"))

    @env.tool
    def mark_read(index: int) -> Mail:
        """Mark a message as read."""
        env.state.inbox[index].read = True
        return env.state.inbox[index]

    with env.serving() as url:
        async with DataPlane(f"{url}/agentenv") as plane:
            await plane.add([{"kind": "data", "data": {"inbox": [{"subject": "s"}]}}])
            assert env.state.inbox == [Mail(subject="s")]
            with pytest.raises(ServerRefused, match=r"inbox\.1\.subject"):
                await plane.add([{"kind": "data", "data": {"inbox": [{}]}}])
            async with mcp.connect(f"{url}/mcp") as session:
                result = await session.call_tool("mark_read", {"index": 0})
            assert result.structured == {"subject": "s", "read": True}
            (part,) = await plane.get()
            assert part["data"] == {
                "inbox": [{"subject": "s", "read": True}],
                "owner": "eve",
            }
            await plane.reset()
    assert env.state == Box(owner="eve")


async def test_authors_own_data_plane():
    env = Environment("notes", state={"lines": ["old"]})
    seen = []

    @env.on_reset
    def empty():
        env.state["lines"].clear()

    @env.on_add
    async def add(parts):
        seen.extend(read_json(part) for part in parts if part["kind"] == "data")
        env.state["lines"] += read_bytes(parts[0]).decode().splitlines()

    @env.on_get
    def get():
        return [{"kind": "text", "text": "\n".join(env.state["lines"])}]

    with env.serving() as url:
        async with DataPlane(f"{url}/agentenv") as plane:
            await plane.reset()
            await plane.add([file_part("a\nb"), {"kind": "data", "data": {"n": 1}}])
            assert await plane.get() == ({"kind": "text", "text": "a\nb"},)
            assert seen == [{"n": 1}]

            @env.on_get
            def fail():
                raise RuntimeError("disk full")

        with env.serving() as again:
            async with DataPlane(f"{again}/agentenv") as plane:
                with pytest.raises(ServerRefused) as caught:
                    await plane.get()
    assert str(caught.value) == "data/get failed: RuntimeError: disk full (get_failed)"


async def test_extension():
    env = Environment("clock", state={"now": 0})

    @env.extension("urn:example:clock/v1", "set-clock", description="Sets the clock.")
    def set_clock(body):
        env.state["now"] = body["now"]
        return {"now": env.state["now"]}

    with env.serving() as url:
        card = await data_plane.read_card(url)
        (listed,) = card.extensions
        endpoint = listed["params"]["endpoint"]
        assert (listed["uri"], endpoint) == (
            "urn:example:clock/v1",
            "/agentenv/ext/set-clock",
        )
        async with httpx.AsyncClient(trust_env=False, base_url=url) as client:
            assert (await client.post(endpoint, json={"now": 5})).json() == {"now": 5}
            assert (await client.post(endpoint, json=[])).status_code == 400
            failed = await client.post(endpoint, json={})
    assert (failed.status_code, failed.json()) == (500, {"error": "KeyError: 'now'"})
    assert env.state == {"now": 5}


async def test_data_plane_is_not_for_agents(monkeypatch):
    monkeypatch.setenv("HARBOR_DATA_TOKEN", "t0ken")
    env = mail_env()
    env.extension("urn:x", "x")(lambda body: {})
    with env.serving() as url:
        for token in (None, "other"):
            async with DataPlane(f"{url}/agentenv", token=token) as plane:
                with pytest.raises(ServerRefused, match=r"not for agents \(HTTP 403\)"):
                    await plane.get()
        async with DataPlane(f"{url}/agentenv", token="t0ken") as plane:
            assert await plane.get()
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(f"{url}/agentenv/ext/x", json={})
        assert answer.status_code == 403
        async with mcp.connect(f"{url}/mcp") as session:
            assert not (
                await session.call_tool("email_search", {"query": "x"})
            ).is_error


async def test_one_thing_at_a_time():
    env = Environment("slow", state={"n": 0})
    running = []

    @env.tool
    def plain() -> int:
        """Read, wait for others to come in, write."""
        n = env.state["n"]
        running.append(threading.get_ident())
        assert len(running) == 1
        for _ in range(1000):
            pass
        running.pop()
        env.state["n"] = n + 1
        return n

    @env.tool
    async def coroutine() -> int:
        """The same."""
        n = env.state["n"]
        running.append(0)
        await anyio.sleep(0.001)
        assert len(running) == 1
        running.pop()
        env.state["n"] = n + 1
        return n

    with env.serving() as url:
        async with (
            mcp.connect(f"{url}/mcp") as session,
            anyio.create_task_group() as group,
        ):
            for _ in range(10):
                group.start_soon(session.call_tool, "plain")
                group.start_soon(session.call_tool, "coroutine")
    assert env.state == {"n": 20}


def test_tools_stay_functions_and_state_is_at_hand():
    env = mail_env()
    env.state["inbox"].append({"subject": "x"})
    assert mail_env().state["inbox"] == []

    @env.tool
    def count() -> int:
        """How many."""
        return len(env.state["inbox"])

    assert count() == 1
    env.reset()
    assert count() == 0


async def test_served_twice():
    env = mail_env()
    for _ in range(2):
        with env.serving() as url:
            async with mcp.connect(f"{url}/mcp") as session:
                assert len(await session.list_tools()) == 3


def test_mistakes_of_authors(monkeypatch):
    env = mail_env()
    with pytest.raises(ValueError, match="has a tool 'send' already"):
        env.tool(name="send")(lambda: None)
    with pytest.raises(ValueError, match="lowercase letters"):
        env.extension("urn:x", "../x")
    env.extension("urn:x", "x")(lambda body: {})
    with pytest.raises(ValueError, match="has an extension 'x' already"):
        env.extension("urn:x", "x")
    with pytest.raises(ValueError, match="needs a name"):
        Environment(state={})
    monkeypatch.setenv("ENVIRONMENT_NAME", "post")
    assert Environment("mail", state={}).name == "post"
