"""An environment as a process: where it listens, when it is ready, how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_harbor.protocols import data_plane, mcp
from servers.mail_env import env

PROGRAM = Path(__file__).parents[1] / "servers" / "mail_env.py"


def start(**environ):
    return subprocess.Popen(
        [sys.executable, PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    "ending", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
async def test_ready_and_ended(ending):
    process = start(MCP_HOST="127.0.0.1", MCP_PORT="0", ENVIRONMENT_NAME="post")
    try:
        line = process.stdout.readline()
        assert line.startswith("environment post: listening on http://127.0.0.1:")
        url = line.rpartition(" ")[2].strip()
        card = await data_plane.read_card(url)
        assert card.name == "post"
        async with mcp.connect(card.mcp_url) as session:
            # An open session does not hold the server up.
            assert await session.call_tool("email_search", {"query": "x"})
            process.send_signal(ending)
            assert process.wait(10) in (0, -ending)
    finally:
        process.kill()
        out, err = process.communicate()
    assert (out, err) == ("", "")


@pytest.mark.parametrize(
    ("port", "message"),
    [
        ("taken", "Address already in use"),
        ("web", "invalid literal"),
        ("70000", "must be 0-65535"),
    ],
)
def test_cannot_listen(port, message, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if port == "taken":
            port = str(taken.getsockname()[1])
        monkeypatch.setenv("MCP_HOST", "127.0.0.1")
        monkeypatch.setenv("MCP_PORT", port)
        with pytest.raises(SystemExit) as caught:
            env.run()
    text = f"environment mail: cannot listen on 127.0.0.1:{port}: .*{message}"
    assert re.match(text, caught.value.code)
