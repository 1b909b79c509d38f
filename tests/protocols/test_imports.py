"""The SDKs are loaded by those who use them, and a missing one is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_harbor.errors import MissingExtra
from pytest_harbor.protocols import a2a, chat_completions, data_plane, mcp

SDKS = ("a2a", "mcp", "openai", "httpx", "httpx2", "starlette", "uvicorn")


def test_importing_us_loads_no_sdk():
    code = (
        "import sys, pytest_harbor, pytest_harbor.env, pytest_harbor.protocols\n"
        "from pytest_harbor.protocols import a2a, mcp, data_plane, chat_completions\n"
        f"print([name for name in {SDKS} if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("missing", "call", "extra"),
    [
        ("a2a", lambda: a2a.connect("http://h"), "agents"),
        ("httpx", lambda: data_plane.read_card("http://h"), "agents"),
        ("mcp", lambda: mcp.answers("http://h"), "agents"),
        ("openai", lambda: chat_completions.complete("m", []), "judge"),
    ],
)
async def test_missing_sdk(missing, call, extra, monkeypatch):
    for name in list(sys.modules):
        wire = name.startswith("pytest_harbor.protocols.") and name.endswith(
            ("_wire", ".http")
        )
        if wire or name.partition(".")[0] == missing:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    for module in ("a2a_wire", "mcp_wire", "http"):
        monkeypatch.delattr(f"pytest_harbor.protocols.{module}", raising=False)
    with pytest.raises(MissingExtra) as caught:
        await call()
    assert f"pip install 'pytest-harbor[{extra}]'" in str(caught.value)
    assert f"{missing!r}" in str(caught.value)
