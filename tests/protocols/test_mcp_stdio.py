"""MCP servers behind a pipe: what they may print, and what misbehaving comes to.

``tests/episodes/test_chat_servers.py`` starts real ones in sandboxes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import anyio
import pytest

from pytest_harbor.errors import (
    ProtocolError,
    SandboxLost,
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
)
from pytest_harbor.protocols import connections, mcp

pytestmark = pytest.mark.anyio

GOOD = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "piped", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "x" * 200_000}]},
}
Answer = Callable[[dict[str, Any]], Any]


def well(message: dict[str, Any]) -> bytes:
    """What a good server says."""
    if message["method"] not in GOOD:
        error = {"code": -32601, "message": "Method not found"}
        return said(message, error=error)
    return said(message, result=GOOD[message["method"]])


def said(message: dict[str, Any], **what: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **what}).encode() + b"\n"


class Server:
    """A pipe whose other end answers ``method`` in a way of its own, all else well."""

    def __init__(self, answer: Answer = well, method: str = "initialize") -> None:
        self.answer = answer
        self.method = method
        self.sent: list[dict[str, Any]] = []
        self.is_sending = False
        self._into, self._out = anyio.create_memory_object_stream[Any](100)

    def close(self) -> None:
        self._into.close()
        self._out.close()

    async def receive(self) -> bytes:
        found = await self._out.receive()
        if isinstance(found, Exception):
            raise found
        return found

    async def send(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        assert data.count(b"\n") == 1
        assert not self.is_sending, "two lines at once"
        self.is_sending = True
        for _ in range(20):  # others have their turn
            await anyio.lowlevel.checkpoint()
        self.is_sending = False
        message = json.loads(data)
        self.sent.append(message)
        if "id" not in message:
            return
        known = message["method"] == self.method
        found = self.answer(message) if known else well(message)
        if isinstance(found, OSError):
            raise found
        for part in found if isinstance(found, list) else [found]:
            await self._into.send(part)


def opened(server: Server, seconds: float = 10.0):
    return mcp.connect_pipe(server, "desk-server", timeout_seconds=seconds)


def pieces(message):
    text = well(message)
    return [text[:7], text[7:40], text[40:]]


def noisy(message):
    return [b"Listening...\n\n" + b'{"level": "info"}\n\xff\xfe\n' + well(message)]


def together(message):
    return [b'{"jsonrpc": "2.0", "method": "notifications/x"}\n' + well(message)]


@pytest.mark.parametrize("answer", [well, pieces, noisy, together])
async def test_what_it_may_print(answer):
    with closing(Server(answer, "tools/call")) as server, anyio.fail_after(20):
        async with opened(server) as session:
            assert session.server_name == "piped"
            assert [tool.name for tool in await session.list_tools()] == ["add"]
            result = await session.call_tool("add", {"text": "a\nb"})
            assert len(result.text) == 200_000
    assert server.sent[-1]["params"]["arguments"] == {"text": "a\nb"}


async def test_calls_at_once():
    with closing(Server()) as server, anyio.fail_after(20):
        async with opened(server) as session, anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(session.call_tool, "add", {})
    assert [one["method"] for one in server.sent].count("tools/call") == 8


FAULTS = {
    "silent": (lambda _: [], ServerTimeout, "no answer from desk-server in time"),
    "noise": (lambda _: b"hello\n", ServerTimeout, "no answer from desk-server"),
    "ended": (lambda _: b"", ServerUnreachable, "desk-server ended the session"),
    "half": (lambda _: [b'{"json', b""], ServerUnreachable, "ended the session"),
    "huge": (lambda _: b" " * 1_100_000, ProtocolError, "is larger than 1 MiB"),
    "error": (
        lambda message: said(message, error={"code": -32000, "message": "no room"}),
        ServerRefused,
        "desk-server refused: no room",
    ),
    "shapeless": (
        lambda message: said(message, result={"tools": 7, "serverInfo": "me"}),
        ProtocolError,
        "against the protocol",
    ),
    "deaf": (lambda _: BrokenPipeError(), ServerUnreachable, "reads no more messages"),
}


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
@pytest.mark.parametrize(("answer", "kind", "message"), FAULTS.values(), ids=FAULTS)
async def test_faults(monkeypatch, answer, kind, message, method):
    monkeypatch.setattr(connections, "MAX_BODY_BYTES", 1024 * 1024)
    seconds = 1 if kind is ServerTimeout else 10
    with closing(Server(answer, method)) as server, anyio.fail_after(20):
        if method == "initialize":
            with pytest.raises(kind, match=message) as caught:
                async with opened(server, seconds):
                    pass
        else:
            async with opened(server, seconds) as session:
                with pytest.raises(kind, match=message) as caught:
                    await session.list_tools()
    assert type(caught.value) is kind


async def test_a_sandbox_that_is_lost_is_no_fault_of_the_server():
    def answer(message):
        return SandboxLost("container is gone")

    with (
        closing(Server(answer, "tools/list")) as server,
        anyio.fail_after(20),
        pytest.raises(SandboxLost, match="container is gone"),
    ):
        async with opened(server) as session:
            await session.list_tools()
