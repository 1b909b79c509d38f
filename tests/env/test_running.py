"""An environment as a process: where it listens, when it is ready, how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from pytest_harbor.errors import ProtocolError
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


async def failing(function, *args):
    with pytest.raises(ProtocolError):
        await function(*args)


@pytest.mark.slow
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
        async with (
            mcp.connect(card.mcp_url) as session,
            anyio.create_task_group() as group,
        ):
            group.start_soon(failing, session.call_tool, "wait", {"seconds": 60})
            line = await anyio.to_thread.run_sync(process.stdout.readline)
            assert line == "waiting\n"
            process.send_signal(ending)
            # A call under way does not hold it up.
            code = await anyio.to_thread.run_sync(process.wait, 10)
            assert code in (0, -ending)
            group.cancel_scope.cancel()
    finally:
        process.kill()
        process.communicate()


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
