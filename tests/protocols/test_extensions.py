"""The extensions that steps use, found on the card and called (spec 12)."""

from __future__ import annotations

import pytest

from pytest_harbor.errors import (
    ProtocolError,
    ServerRefused,
    UnsupportedByAgent,
)
from pytest_harbor.protocols import a2a
from servers.extended_agent import Extended
from servers.running import serving

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def served():
    agent = Extended()
    with serving(agent.app()) as url:
        yield agent, url


@pytest.fixture
async def agent(served):
    server, url = served
    server.posted, server.refuses, server.takes_name = [], False, True
    async with await a2a.connect(url, timeout_seconds=5) as connection:
        yield connection


@pytest.fixture
def server(served, agent):
    return served[0]


async def test_mcp_server(agent, server):
    await agent.add_mcp_server("http://h:1/mcp", "mail", {"x-role": "clerk"})
    await agent.add_mcp_server("http://h:2/mcp")
    assert server.posted == [
        (
            "mcp-config",
            {"url": "http://h:1/mcp", "name": "mail", "headers": {"x-role": "clerk"}},
        ),
        ("mcp-config", {"url": "http://h:2/mcp"}),
    ]
    assert await agent.mcp_servers() == {"mail": {"url": "u", "has_headers": False}}


async def test_name_only_for_agents_that_take_one(served, server):
    server.takes_name = False
    async with await a2a.connect(served[1], timeout_seconds=5) as agent:
        await agent.add_mcp_server("http://h:1/mcp", "mail")
    assert server.posted == [("mcp-config", {"url": "http://h:1/mcp"})]


async def test_skill(agent, server):
    await agent.add_skill("fines", "Late fees", "Ten cents a day.")
    body = {"name": "fines", "description": "Late fees", "skill_md": "Ten cents a day."}
    assert server.posted == [("skill-config", body)]


@pytest.mark.parametrize("name", ["", "../x", ".x", "a b", "a" * 129, "a\n"])
async def test_skill_name(agent, server, name):
    with pytest.raises(ValueError, match="skill name"):
        await agent.add_skill(name, "", "")
    assert server.posted == []


async def test_configure_sends_what_the_card_takes(agent, server):
    values = {"model": "m", "effort": None, "system_prompt": "s"}
    assert agent.configurable() == {"model", "effort"}
    assert await agent.configure(values) == {"model"}
    assert await agent.configure({"system_prompt": "s"}) == frozenset()
    assert server.posted == [("agent-config", {"model": "m"})]


async def test_trajectory(agent, server):
    assert await agent.trajectory("t1") == [{"step": 1}]
    assert server.posted == [("trajectory", {"task_id": "t1"})]
    with pytest.raises(ProtocolError, match="no `trajectory`"):
        await agent.trajectory("lost")


async def test_refusal_has_status_and_body(agent, server):
    server.refuses = True
    with pytest.raises(ServerRefused, match="422: no such thing") as caught:
        await agent.configure({"model": "m"})
    assert (caught.value.status, caught.value.body) == (422, "no such thing")


async def test_agent_without_extensions():
    with serving(Extended(names=["trajectory"]).app()) as url:
        async with await a2a.connect(url, timeout_seconds=5) as agent:
            with pytest.raises(
                UnsupportedByAgent, match=r"no extension .*mcp-config"
            ) as e:
                await agent.add_mcp_server("http://h/mcp")
            assert "urn:agentenv:trajectory/v1" in str(e.value)
            with pytest.raises(UnsupportedByAgent):
                await agent.add_skill("a", "", "")
            assert agent.configurable() == frozenset()
            assert await agent.configure({"model": "m"}) == frozenset()
    with serving(Extended(names=[]).app()) as url:
        async with await a2a.connect(url, timeout_seconds=5) as agent:
            assert await agent.trajectory("t1") is None
