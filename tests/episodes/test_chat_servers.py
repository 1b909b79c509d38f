"""The chat agent and servers of the MCP SDK that run in real sandboxes."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal

from model_server import KEY, MODEL, Call, ModelServer, Say, Scene
from pytest_harbor.agents.api import AgentResult, AgentTurn, McpServer
from pytest_harbor.agents.chat import ChatAgent
from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.provider import LocalProvider
from pytest_harbor.sandboxes.transfer_types import Upload
from sdk_packages import folders_of

pytestmark = pytest.mark.slow

SERVER = """
import sys
from mcp.server import MCPServer

server = MCPServer("desk", log_level="WARNING")


@server.tool()
def note(text: str) -> str:
    \"\"\"Keep a note.\"\"\"
    open("notes.txt", "a").write(text + "\\n")
    return "kept " + text


if __name__ == "__main__":
    transport, *port = sys.argv[1:]
    address = {"host": "0.0.0.0", "port": int(port[0])} if port else {}
    server.run(transport, **address)
"""
LISTENING = """
import socket, sys, time
until = time.monotonic() + 30
while True:
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
        break
    except OSError:
        if time.monotonic() > until:
            raise
        time.sleep(0.05)
"""


class Desk:
    """A sandbox with the SDK and a server that is written with it."""

    def __init__(
        self, sandbox: Sandbox, python: str, env: Mapping[str, str], portal: Any
    ) -> None:
        self.sandbox = sandbox
        self.python = python
        self.env = env
        self.portal = portal

    def serve(self, transport: str, port: int, log: Path) -> None:
        """Start the server; returns when it listens."""
        command = [self.python, "/srv/desk.py", transport, str(port)]
        spawn = partial(self.sandbox.spawn, command, env=self.env, log=log)
        self.portal.call(spawn)
        ready = [self.python, "-c", LISTENING, str(port)]
        done = self.portal.call(partial(self.sandbox.exec, ready, timeout_seconds=60))
        assert done.ok, (done.output, log.read_text())

    def chat(
        self, server: McpServer, *steps: Any, logs: Path, seconds: float = 60.0
    ) -> tuple[AgentResult, Sequence[str]]:
        """One turn of the chat agent; its result, and what the model was told."""
        with ModelServer(Scene("do it", *steps, Say("ok"))) as model:
            agent = ChatAgent(model=MODEL, api_base=f"{model.url}/v1")
            agent.needs(None, {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": model.url})
            turn = AgentTurn(
                "do it",
                self.sandbox,
                step="task",
                index=0,
                user=None,
                budget_seconds=seconds,
                logs=logs,
                mcp_servers=(server,),
                env=self.env,
            )
            result = self.portal.call(agent.run, turn)
        said = model.turns[-1].conversation if model.turns else ()
        return result, [m.text for m in said if m.role == "tool"]

    def runs(self, command: str) -> bool:
        """Whether a process of the sandbox has that in its command line."""
        every = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
        return command in self.portal.call(self.sandbox.exec, every).stdout

    def notes(self) -> str | None:
        return self.portal.call(
            self.sandbox.read_text, f"{self.sandbox.workdir}/notes.txt"
        )


@contextmanager
def started(
    portal: BlockingPortal, provider: Any, spec: EnvironmentSpec
) -> Iterator[Sandbox]:
    sandbox = portal.call(partial(provider.start, spec, name="desk", labels={}))
    try:
        yield sandbox
    finally:
        portal.call(sandbox.stop)


@pytest.fixture(
    scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)]
)
def desk(request: pytest.FixtureRequest, portal: BlockingPortal) -> Iterator[Desk]:
    uploads = [Upload(SERVER.encode(), "/srv/desk.py")]
    if request.param == "local":
        provider: LocalProvider = request.getfixturevalue("local")
        folders = (Path(sys.prefix), Path(sys.base_prefix))
        spec = EnvironmentSpec(read_only_folders=folders)
        python, env = sys.executable, {}
    else:
        provider = request.getfixturevalue("docker")
        spec = EnvironmentSpec(image=request.getfixturevalue("python_image"))
        python, env = "python3", {"PYTHONPATH": "/srv/packages"}
        uploads += [
            Upload(path, f"/srv/packages/{name}")
            for name, path in folders_of("mcp").items()
        ]
    with started(portal, provider, spec) as sandbox:
        portal.call(sandbox.upload, uploads)
        yield Desk(sandbox, python, env, portal)


def test_a_server_that_is_started(desk: Desk, tmp_path: Path) -> None:
    server = McpServer(
        "desk", "stdio", command=desk.python, args=("/srv/desk.py", "stdio")
    )
    calls = [Call("note", {"text": text}) for text in ("one", "two")]
    result, told = desk.chat(server, *calls, logs=tmp_path)
    assert (result.warnings, result.failure) == ((), None)
    assert told == ["kept one", "kept two"]
    assert (desk.notes() or "").splitlines()[-2:] == ["one", "two"]
    assert not desk.runs("desk.py stdio")


def test_a_server_that_says_nothing_ends_with_the_budget(
    desk: Desk, tmp_path: Path
) -> None:
    server = McpServer("desk", "stdio", command="sleep", args=("3777",))
    result, _ = desk.chat(server, logs=tmp_path, seconds=1.0)
    assert result.failure is not None
    assert result.failure.kind == "agent_timeout"
    assert not desk.runs("sleep 3777")


def test_a_server_that_cannot_be_started(desk: Desk, tmp_path: Path) -> None:
    server = McpServer("desk", "stdio", command="no-such-server")
    result, _ = desk.chat(server, logs=tmp_path)
    [warning] = result.warnings
    assert warning.startswith("MCP server 'desk' is left out: no-such-server ended the")
    assert "(exit code 127: " in warning
    assert "not found" in warning
    assert result.text == "ok"


@pytest.mark.parametrize(
    ("transport", "path"), [("sse", "sse"), ("streamable-http", "mcp")]
)
def test_a_server_that_listens(
    desk: Desk, tmp_path: Path, transport: Any, path: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    desk.serve(transport, port, tmp_path / "server.txt")
    server = McpServer("desk", transport, url=f"http://localhost:{port}/{path}")
    result, told = desk.chat(server, Call("note", {"text": transport}), logs=tmp_path)
    assert result.warnings == ()
    assert told == [f"kept {transport}"]
    assert transport in (desk.notes() or "").splitlines()
