"""The tools of the ``chat`` agent: a shell in the sandbox, and those of MCP servers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from pytest_harbor.agents.api import AgentTurn, McpServer
from pytest_harbor.errors import (
    MissingExtra,
    ProtocolError,
    UnsupportedByProvider,
)
from pytest_harbor.protocols import mcp
from pytest_harbor.protocols.excerpts import shortened
from pytest_harbor.sandboxes.api import Sandbox

DEFAULT_COMMAND_SECONDS: Final = 120.0
MAX_RESULT_CHARS: Final = 16_000
LOG_NAME: Final = "shell.txt"
_OWN_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})

SHELL_TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command by sh -c in the sandbox; gives its output and exit code.",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "timeout_seconds": {
                    "type": "number",
                    "description": f"Kill it after that time; {DEFAULT_COMMAND_SECONDS:g} if unset.",
                },
            },
            "required": ["command"],
        },
    },
}


async def run_shell(turn: AgentTurn, arguments: Mapping[str, Any]) -> str:
    """Run the command; gives what the model reads. Raises SandboxError."""
    command = arguments.get("command")
    seconds = arguments.get("timeout_seconds", DEFAULT_COMMAND_SECONDS)
    if not isinstance(command, str) or not command.strip():
        return "error: shell needs a command, a string"
    if "\0" in command:
        return "error: a command cannot hold a NUL byte"
    if not _is_time(seconds):
        return "error: timeout_seconds must be a number above 0"
    result = await turn.sandbox.exec(
        command,
        user=turn.user,
        env=turn.env,
        timeout_seconds=float(seconds),
        log=turn.logs / LOG_NAME,
    )
    ending = f"exit code {result.exit_code}"
    if result.timed_out:
        ending = f"killed after {seconds:g} s"
    return f"{shortened(result.output, MAX_RESULT_CHARS)}\n[{ending}]"


def _is_time(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0


class RemoteTools:
    """Tools of a task's MCP servers, as the model sees them."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._tools: dict[str, tuple[mcp.McpSession, str]] = {}
        self.definitions: list[Mapping[str, Any]] = []
        self.warnings: list[str] = []

    async def connect(
        self, servers: Iterable[McpServer], stack: AsyncExitStack
    ) -> None:
        """Open a session with each server that can be reached; the others are warned of."""
        for server in servers:
            if problem := await self._problem(server, stack):
                self.warnings.append(
                    f"MCP server {server.name!r} is left out: {problem}"
                )

    async def _problem(self, server: McpServer, stack: AsyncExitStack) -> str:
        """Open a session; why that cannot be done, or nothing."""
        if server.transport != "streamable-http" or server.url is None:
            return f"chat speaks streamable-http only, and it is {server.transport}"
        try:
            await self._open(server, server.url, stack)
        except (ProtocolError, UnsupportedByProvider, MissingExtra) as error:
            return str(error)
        return ""

    async def _open(self, server: McpServer, asked: str, stack: AsyncExitStack) -> None:
        url = await self._reachable(asked)
        session = await stack.enter_async_context(
            mcp.connect(url, headers=dict(server.headers))
        )
        for tool in await session.list_tools():
            name = tool.name
            if name in self._tools or name == SHELL_TOOL["function"]["name"]:
                name = f"{server.name}_{tool.name}"
            self._tools[name] = (session, tool.name)
            self.definitions.append(
                {
                    "type": "function",
                    "function": {
                        "name": name,
                        "description": tool.description,
                        "parameters": dict(tool.input_schema),
                    },
                }
            )

    async def _reachable(self, url: str) -> str:
        """The URL as this process reaches it: ``localhost`` is the sandbox's own."""
        parts = urlsplit(url)
        if parts.hostname not in _OWN_HOSTS:
            return url
        address = await self._sandbox.address()
        port = f":{parts.port}" if parts.port else ""
        return urlunsplit(parts._replace(netloc=f"{address}{port}"))

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool; gives what the model reads."""
        if name not in self._tools:
            known = ", ".join(["shell", *self._tools])
            return f"error: there is no tool {name!r}, only {known}"
        session, own_name = self._tools[name]
        try:
            result = await session.call_tool(own_name, arguments)
        except ProtocolError as error:
            return f"error: {error}"
        text = result.text
        if not text and result.structured is not None:
            text = json.dumps(result.structured, ensure_ascii=False)
        said = f"error: {text}" if result.is_error else text
        return shortened(said, MAX_RESULT_CHARS)
