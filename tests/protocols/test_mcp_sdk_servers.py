"""MCP servers that the mcp SDK serves, without our code and without a card (spec 11)."""

from __future__ import annotations

from functools import partial
from urllib.parse import urlsplit

import anyio
import pytest

from pytest_harbor.errors import ServerTimeout, ServerUnreachable
from pytest_harbor.protocols import data_plane, mcp
from servers.running import serving
from servers.sdk_tools import build

pytestmark = pytest.mark.anyio


@pytest.fixture(
    scope="module",
    params=[
        {},
        {"stateless": True},
        {"json_response": True},
        {"over_sse": True},
    ],
    ids=["sessions", "stateless", "json", "sse"],
)
def connect(request):
    """Opens a session with the server."""
    with serving(build(**request.param)) as base:
        over_sse = "over_sse" in request.param
        yield partial(
            mcp.connect,
            f"{base}/sse" if over_sse else f"{base}/mcp",
            transport="sse" if over_sse else "streamable-http",
        )


@pytest.fixture(scope="module")
def url():
    with serving(build()) as base:
        yield f"{base}/mcp"


async def test_tools(connect):
    async with connect() as session:
        tools = await session.list_tools()
        assert session.server_name == "plain-tools"
    assert [tool.name for tool in tools] == ["add", "slow", "broken", "long"]
    assert tools[0].description == "Add two numbers."
    assert set(tools[0].input_schema["properties"]) == {"a", "b"}


async def test_calls(connect):
    async with connect() as session:
        result = await session.call_tool("add", {"a": 2, "b": 3})
        assert (result.text, result.is_error) == ("5", False)
        failed = await session.call_tool("broken", {"why": "no ink"})
        assert failed.is_error
        assert "no ink" in failed.text
        bad = await session.call_tool("add", {"a": "x"})
        assert bad.is_error
        big = await session.call_tool("long", {"size": 3_000_000})
        assert len(big.text) == 3_000_000


async def test_slow_tool_and_the_session_after_it(connect):
    async with connect() as session:
        with pytest.raises(ServerTimeout, match="tool slow"):
            await session.call_tool("slow", {"seconds": 30}, timeout_seconds=0.3)
        assert (await session.call_tool("add", {"a": 1, "b": 1})).text == "2"


async def test_calls_at_once(connect):
    async with connect() as session, anyio.create_task_group() as group:
        texts = {}

        async def call(number):
            texts[number] = (await session.call_tool("add", {"a": number, "b": 1})).text

        for number in range(8):
            group.start_soon(call, number)
    assert texts == {number: str(number + 1) for number in range(8)}


async def test_what_the_block_raises_comes_out_bare(connect):
    with pytest.raises(LookupError, match="mine"):
        async with connect():
            raise LookupError("mine")


async def test_cancelled_block(connect):
    with anyio.move_on_after(0.2) as scope:
        async with connect() as session:
            await session.call_tool("slow", {"seconds": 30})
    assert scope.cancelled_caught


async def test_readiness(url):
    assert await mcp.answers(url)
    assert not await mcp.answers(f"{url}/elsewhere")


async def test_no_card(url):
    assert await data_plane.read_card(url.removesuffix("/mcp")) is None


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
async def test_nobody_there(free_url, transport):
    with pytest.raises(ServerUnreachable, match="cannot be reached") as caught:
        async with mcp.connect(free_url, transport=transport):
            pass
    assert not caught.value.sent
    assert not await mcp.answers(free_url)


async def test_server_that_goes_away():
    with serving(build()) as base:
        connection = mcp.connect(f"{base}/mcp")
        session = await connection.__aenter__()
        assert await session.list_tools()
    try:
        with pytest.raises(ServerUnreachable):
            await session.list_tools()
    finally:
        await connection.__aexit__(None, None, None)


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
async def test_a_name_that_this_machine_does_not_know(transport):
    """The server sees that name, and may refuse others: those of the SDK do."""
    path = "sse" if transport == "sse" else "mcp"
    app = build(over_sse=transport == "sse", own_names=["notes:*"])
    hosts = []

    async def noted(scope, receive, send):
        hosts.extend(
            value for name, value in scope.get("headers", ()) if name == b"host"
        )
        await app(scope, receive, send)

    with serving(noted) as base:
        port = urlsplit(base).port
        async with mcp.connect(
            f"http://notes:{port}/{path}", transport=transport, address="127.0.0.1"
        ) as session:
            assert (await session.call_tool("add", {"a": 1, "b": 1})).text == "2"
    assert {*hosts} == {b"notes:%d" % port}


def test_repeated_names():
    tools = [mcp.Tool(name, "", {}) for name in ("b", "a", "b", "c", "a")]
    assert mcp.repeated_names(tools) == ("a", "b")
