"""What MCP servers over SSE that misbehave come to: one of our errors, in time."""

from __future__ import annotations

import anyio
import pytest

from pytest_harbor.errors import (
    ProtocolError,
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
)
from pytest_harbor.protocols import connections, mcp
from servers.rubbish import misbehaving
from servers.rubbish_sse import misbehaving_sse

pytestmark = pytest.mark.anyio

AT_FIRST = {
    "html": (ProtocolError, "answered no events: .*Welcome to nginx"),
    "array": (ProtocolError, "answered no events"),
    "zipped": (ProtocolError, "compressed"),
    "huge": (ProtocolError, "larger than 1 MiB"),
    "circle": (ProtocolError, "redirects in circles"),
    "status500": (ServerRefused, r"500: stack trace \[31m here"),
    "status404": (ServerRefused, "404: nobody here"),
    "redirect": (ServerRefused, "to http://elsewhere.example/steal, which is not"),
    "never": (ServerTimeout, "no answer in 0.3 s"),
    "hang_up": (ServerUnreachable, "the connection broke"),
}
ON_A_REQUEST = {
    "refused": (ServerRefused, r"POST .* answered 500: stack trace \[31m here"),
    "redirect": (ServerRefused, "to http://elsewhere.example/steal, which is not"),
    "circle": (ProtocolError, "redirects in circles"),
    "hang_up": (ServerUnreachable, "POST .*: the connection broke"),
    "silent": (ServerTimeout, "no answer from .* in time"),
    "never": (ServerTimeout, "no answer from .* in time"),
    "ended": (ServerUnreachable, "ended the session"),
    "garbage": (ProtocolError, 'sent no JSON-RPC message: {"jsonrpc": "2.0", "resu'),
    "huge": (ProtocolError, "an event is larger than 1 MiB"),
    "error": (ServerRefused, "no room"),
    "shapeless": (ProtocolError, "against the protocol"),
}


@pytest.fixture(scope="module")
def rogue():
    with misbehaving() as (url, _):
        yield url


@pytest.fixture(scope="module")
def rogue_sse():
    with misbehaving_sse() as found:
        yield found


@pytest.fixture(autouse=True)
def _small_bodies(monkeypatch):
    monkeypatch.setattr(connections, "MAX_BODY_BYTES", 1024 * 1024)


def opened(url, kind=ServerTimeout):
    # Long enough for those that answer, short for those that never do.
    seconds = 0.3 if kind is ServerTimeout else 10
    return mcp.connect(url, transport="sse", timeout_seconds=seconds)


@pytest.mark.parametrize(("way", "expected"), AT_FIRST.items())
async def test_no_stream(rogue, way, expected):
    kind, message = expected
    with pytest.raises(kind, match=message) as caught, anyio.fail_after(20):
        async with opened(f"{rogue}/{way}/sse", kind):
            pass
    assert type(caught.value) is kind


@pytest.mark.parametrize(("way", "expected"), ON_A_REQUEST.items())
async def test_first_request(rogue_sse, way, expected):
    kind, message = expected
    with pytest.raises(kind, match=message) as caught, anyio.fail_after(20):
        async with opened(f"{rogue_sse[0]}/{way}/sse", kind):
            pass
    assert type(caught.value) is kind


@pytest.mark.parametrize(("way", "expected"), ON_A_REQUEST.items())
async def test_later_request(rogue_sse, way, expected):
    """It fails that request, and never what else goes on in the block."""
    kind, message = expected
    with anyio.fail_after(20):
        async with opened(f"{rogue_sse[0]}/{way}-list/sse", kind) as session:
            with pytest.raises(kind, match=message) as caught:
                await session.list_tools()
            await anyio.lowlevel.checkpoint()
            assert type(caught.value) is kind


async def test_an_endpoint_of_another_host_is_ours(rogue_sse):
    url, asked = rogue_sse
    with anyio.fail_after(20):
        async with opened(f"{url}/elsewhere/sse", None) as session:
            assert session.server_name == "rogue"
    assert "/elsewhere/post" in asked


async def test_no_endpoint(rogue_sse):
    with pytest.raises(ServerTimeout, match=r"GET .*: no answer in 0.3 s"):
        async with opened(f"{rogue_sse[0]}/unnamed/sse"):
            pass
    with pytest.raises(ProtocolError, match="an event is larger than 1 MiB"):
        async with opened(f"{rogue_sse[0]}/unended/sse", None):
            pass


async def test_nobody_followed_the_redirect(rogue_sse):
    assert not [path for path in rogue_sse[1] if "steal" in path]
