"""What servers that misbehave come to, for every client: one of our errors, in time."""

from __future__ import annotations

import anyio
import pytest

from pytest_harbor.errors import (
    ProtocolError,
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
)
from pytest_harbor.protocols import a2a, connections, data_plane, mcp
from pytest_harbor.protocols.reply import State
from servers.rubbish import misbehaving

pytestmark = pytest.mark.anyio

UNREADABLE = {
    "html": "Welcome to nginx",
    "half": "no JSON",
    "deep": "no JSON",
    "array": "no JSON-RPC object",
    "nothing": "neither result nor error",
    "wrong_id": "another request",
    "zipped": "compressed",
    "huge": "larger than 1 MiB",
    "circle": "redirects in circles",
}
REFUSED = {
    "status500": r"500: stack trace \[31m here",
    "redirect": "redirect to http://elsewhere.example/steal, which is not followed",
}
LOST = {
    "never": (ServerTimeout, "no answer in 0.2 s"),
    "drip": (ServerTimeout, "no answer in 0.2 s"),
    "hang_up": (ServerUnreachable, "the connection broke"),
}


@pytest.fixture(scope="module")
def rogue():
    with misbehaving() as (url, asked):
        yield url, asked


@pytest.fixture(autouse=True)
def _small_bodies(monkeypatch):
    monkeypatch.setattr(connections, "MAX_BODY_BYTES", 1024 * 1024)


async def get(url, *, seconds=5.0):
    with anyio.fail_after(30):
        async with data_plane.DataPlane(url) as plane:
            await plane.get(timeout_seconds=seconds)


@pytest.mark.parametrize(("way", "message"), UNREADABLE.items())
async def test_unreadable_data(rogue, way, message):
    with pytest.raises(ProtocolError, match=message) as caught:
        await get(f"{rogue[0]}/{way}/rpc")
    assert type(caught.value) is ProtocolError


@pytest.mark.parametrize(("way", "message"), REFUSED.items())
async def test_refused_data(rogue, way, message):
    with pytest.raises(ServerRefused, match=message) as caught:
        await get(f"{rogue[0]}/{way}/rpc")
    assert caught.value.code is None


@pytest.mark.parametrize(("way", "kind", "message"), [(k, *v) for k, v in LOST.items()])
async def test_lost_data(rogue, way, kind, message):
    with pytest.raises(kind, match=message):
        await get(f"{rogue[0]}/{way}/rpc", seconds=0.2)


async def test_error_of_the_data_plane(rogue):
    with pytest.raises(ServerRefused) as caught:
        await get(f"{rogue[0]}/error/rpc")
    assert str(caught.value) == "data/get failed: no room (add_failed)"
    assert (caught.value.code, caught.value.body) == ("add_failed", "no room")


@pytest.mark.parametrize("way", [*UNREADABLE, "text"])
async def test_unreadable_env_card(rogue, way):
    # A card is no JSON-RPC answer: these are JSON, and no card.
    with pytest.raises(ProtocolError), anyio.fail_after(30):
        await data_plane.read_card(f"{rogue[0]}/{way}-card", timeout_seconds=5)


async def test_env_card_that_is_missing_or_broken(rogue):
    url = rogue[0]
    assert await data_plane.read_card(f"{url}/status404-card") is None
    with pytest.raises(ServerRefused):
        await data_plane.read_card(f"{url}/status500-card")
    with pytest.raises(ServerTimeout):
        await data_plane.read_card(f"{url}/never-card", timeout_seconds=0.3)


@pytest.mark.parametrize("way", [*UNREADABLE, *REFUSED, *LOST])
async def test_agent_card(rogue, way):
    with pytest.raises(ProtocolError), anyio.fail_after(30):
        await a2a.connect(f"{rogue[0]}/{way}-card", timeout_seconds=0.2)


async def test_agent_card_that_never_comes(rogue, free_url):
    with pytest.raises(ServerTimeout, match=r"in 1 s; last: .*404: nobody here"):
        await a2a.connect(f"{rogue[0]}/status404-card", timeout_seconds=1)
    with pytest.raises(ServerTimeout, match="cannot be reached: Connection refused"):
        await a2a.connect(free_url, timeout_seconds=1)
    with pytest.raises(ServerUnreachable, match="Connection refused"):
        await a2a.connect(free_url, timeout_seconds=0)


@pytest.mark.parametrize("way", [*UNREADABLE, *REFUSED, "hang_up", "shapeless", "text"])
async def test_agent_that_cannot_be_read(rogue, way):
    async with await a2a.connect(f"{rogue[0]}/{way}", timeout_seconds=5) as agent:
        with anyio.fail_after(30):
            reply = await agent.send("hello", unreachable_seconds=0.1)
    assert (reply.state, reply.error_type) == (State.UNREACHABLE, "infra_error")
    assert reply.error_message
    assert (reply.error_code == "HTTP 500") == (way == "status500")


async def test_agent_that_refuses_the_message(rogue):
    async with await a2a.connect(f"{rogue[0]}/error", timeout_seconds=5) as agent:
        reply = await agent.send("hello")
    assert (reply.state, reply.error_type) == (State.FAILED, "agent_error")
    assert reply.error_message == "message/send failed: no room (add_failed)"
    assert reply.error_code == "add_failed"


@pytest.mark.parametrize("way", ["never", "drip"])
async def test_agent_that_never_answers(rogue, way):
    async with await a2a.connect(f"{rogue[0]}/{way}", timeout_seconds=5) as agent:
        reply = await agent.send("hello", timeout_seconds=0.4)
    assert (reply.state, reply.error_type) == (State.TIMEOUT, "timeout")


@pytest.mark.parametrize(
    ("way", "kind", "seconds"),
    [
        ("html", ProtocolError, 5),
        ("half", ProtocolError, 5),
        ("wrong_id", ProtocolError, 5),
        ("huge", ProtocolError, 5),
        ("shapeless", ProtocolError, 5),
        ("status500", ServerRefused, 5),
        ("redirect", ServerRefused, 5),
        ("never", ServerTimeout, 0.2),
        ("hang_up", ServerUnreachable, 5),
    ],
)
async def test_mcp(rogue, way, kind, seconds):
    with pytest.raises(kind) as caught, anyio.fail_after(30):
        async with mcp.connect(f"{rogue[0]}/{way}/mcp", timeout_seconds=seconds):
            pass
    assert type(caught.value) is kind


async def test_readiness_of_rubbish(rogue):
    for way in ("html", "never"):
        assert not await mcp.answers(f"{rogue[0]}/{way}/mcp", timeout_seconds=0.2)


def test_nobody_followed_the_redirect(rogue):
    # elsewhere.example has no address: a followed redirect would be another error.
    assert not [path for path in rogue[1] if "steal" in path]
