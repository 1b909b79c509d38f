"""The environment of the documentation works, and has thirty lines at most."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_harbor.protocols import data_plane, mcp

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def blocks():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.anyio
async def test_environment_of_the_page():
    code, own_data, extension, _ = blocks()
    assert len(code.splitlines()) <= 30
    written: dict = {"__name__": "server"}
    exec(code, written)
    env = written["env"]
    with env.serving() as url:
        async with (
            data_plane.DataPlane(f"{url}/agentenv") as plane,
            mcp.connect(f"{url}/mcp") as session,
        ):
            await plane.add([{"kind": "data", "data": {"inbox": [{"text": "hello"}]}}])
            found = await session.call_tool("email_search", {"query": "hello"})
            assert found.structured == {"result": [{"text": "hello"}]}
            refused = await session.call_tool(
                "send", {"to": "bob", "subject": "", "text": ""}
            )
            assert "bob is no address" in refused.text

    exec(own_data, written)
    exec(extension, written)
    with env.serving() as url:
        async with data_plane.DataPlane(f"{url}/agentenv") as plane:
            await plane.add([{"kind": "text", "text": "from,text\nann,hi\n"}])
    assert env.state["inbox"][-1] == {"from": "ann", "text": "hi"}
