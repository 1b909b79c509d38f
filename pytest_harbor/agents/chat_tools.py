"""The tools of the ``chat`` agent: a shell in the sandbox, and those of MCP servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from pytest_harbor.agents.api import AgentTurn, McpServer
from pytest_harbor.errors import (
    MissingExtra,
    ProtocolError,
    SandboxLost,
    UnsupportedByProvider,
)
from pytest_harbor.protocols import mcp
from pytest_harbor.protocols.chat_completions import ToolCall
from pytest_harbor.protocols.excerpts import excerpt, is_too_deep, shortened
from pytest_harbor.sandboxes.api import KILLED, PipedProcess

DEFAULT_COMMAND_SECONDS: Final = 120.0
MAX_COMMAND_SECONDS: Final = 86_400.0
MAX_RESULT_CHARS: Final = 16_000
MAX_NAME_CHARS: Final = 64
"""Of a tool's name at OpenAI, which takes letters, digits, ``_`` and ``-`` only."""
LOG_NAME: Final = "shell.txt"
_LAST_WORDS: Final = 500
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


def arguments_of(call: ToolCall) -> Mapping[str, Any]:
    """What the model calls the tool with. Raises ValueError, in words for the model."""
    try:
        found = json.loads(call.arguments)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("the arguments hold half a character") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the arguments are no JSON: {error}") from error
    if is_too_deep(found):
        raise ValueError("the arguments are nested too deeply")
    if not isinstance(found, dict):
        raise ValueError("the arguments are no JSON object")  # noqa: TRY004
    return found


async def run_shell(turn: AgentTurn, arguments: Mapping[str, Any]) -> str:
    """Run the command; gives what the model reads. Raises SandboxError."""
    command = arguments.get("command")
    seconds = arguments.get("timeout_seconds", DEFAULT_COMMAND_SECONDS)
    if not isinstance(command, str) or not command.strip():
        return "error: shell needs a command, a string"
    if "\0" in command:
        return "error: a command cannot hold a NUL byte"
    if not _is_time(seconds):
        return (
            f"error: timeout_seconds must be above 0, at most {MAX_COMMAND_SECONDS:g}"
        )
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
    return f"{_told(result.output)}\n[{ending}]"


def _told(text: str) -> str:
    """What of a result the model reads; all of it can be sent."""
    return shortened(text.encode(errors="replace").decode(), MAX_RESULT_CHARS)


def _is_time(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= MAX_COMMAND_SECONDS


class RemoteTools:
    """Tools of a task's MCP servers, as the model sees them."""

    def __init__(self, turn: AgentTurn) -> None:
        self._turn = turn
        self._sandbox = turn.sandbox
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
        try:
            async with AsyncExitStack() as opened:
                if server.transport == "stdio":
                    session = await self._start(server, opened)
                else:
                    session = await self._connect(server, server.transport, opened)
                await self._list(server, session)
                stack.push_async_exit(opened.pop_all())
        except (ProtocolError, UnsupportedByProvider, MissingExtra) as error:
            return str(error)
        return ""

    async def _connect(
        self, server: McpServer, transport: mcp.HttpTransport, stack: AsyncExitStack
    ) -> mcp.McpSession:
        assert server.url is not None
        return await stack.enter_async_context(
            mcp.connect(
                server.url,
                headers=server.headers,
                transport=transport,
                address=await self._address(server.url),
            )
        )

    async def _start(self, server: McpServer, stack: AsyncExitStack) -> mcp.McpSession:
        """Run the server in the sandbox, as what the shell runs; it ends with the stack."""
        assert server.command is not None
        process = await self._sandbox.spawn_piped(
            [server.command, *server.args],
            user=self._turn.user,
            env=self._turn.env,
            log=self._turn.logs / f"mcp-{_as_name(server.name)}.txt",
        )
        stack.push_async_callback(_end, process)
        try:
            return await stack.enter_async_context(
                mcp.connect_pipe(process, server.command)
            )
        except ProtocolError as error:
            await _end(process)
            raise ProtocolError(f"{error}{await _last_words(process)}") from error

    async def _list(self, server: McpServer, session: mcp.McpSession) -> None:
        for tool in await session.list_tools():
            name = self._new_name(server.name, tool.name)
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

    def _new_name(self, server: str, tool: str) -> str:
        """A name that the endpoint takes and no other tool has."""
        taken = {SHELL_TOOL["function"]["name"], *self._tools}
        name = _as_name(tool)
        if name in taken:
            name = _as_name(f"{server}_{tool}")
        number, base = 1, name
        while name in taken:
            number += 1
            name = f"{base[: MAX_NAME_CHARS - 4]}_{number}"
        return name

    async def _address(self, url: str) -> str | None:
        """Where this process finds the URL's host, if not by its name.

        ``localhost`` is the sandbox's own, and the names of its services are known in it alone.
        """
        host = urlsplit(url).hostname or ""
        there = (
            self._sandbox if host in _OWN_HOSTS else self._sandbox.services.get(host)
        )
        return None if there is None else await there.address()

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
        return _told(f"error: {text}" if result.is_error else text)


async def _end(process: PipedProcess) -> None:
    with suppress(SandboxLost):  # whoever uses the sandbox next hears of it
        await process.kill()


async def _last_words(process: PipedProcess) -> str:
    """How a server ended, if by itself."""
    result = await process.wait()
    if result.exit_code is None or result.exit_code == KILLED:
        return ""
    said = excerpt(result.stderr[-_LAST_WORDS:])
    return f" (exit code {result.exit_code}{said and f': {said}'})"


def _as_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:MAX_NAME_CHARS]
