"""The agent that plays a script: it calls tools, writes files, answers, or fails on order."""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import anyio

from pytest_harbor.agents.scripted.script import (
    Action,
    Script,
    ScriptedAnswer,
    filled,
)
from pytest_harbor.agents.trajectory import (
    AgentInfo,
    Observation,
    ObservationResult,
    Step,
    ToolCall,
    Trajectory,
)
from pytest_harbor.protocols.reply import AGENT_ERROR, State
from pytest_harbor.protocols.served_agent import (
    AgentSetup,
    Answer,
    Incoming,
    ServedAgent,
)

if TYPE_CHECKING:
    from pytest_harbor.protocols.mcp import McpSession


class ScriptFailed(Exception):
    """Raised when the script cannot go on: no answer fits, a tool is not there, ..."""


class ScriptedAgent(ServedAgent):
    """Plays a script. What was saved and what is used up lasts as long as it lives."""

    def __init__(self, script: Script) -> None:
        self.name = script.name
        self.description = "Answers from a script."
        self._script = script
        self._given: Counter[int] = Counter()
        self._saved: dict[str, Any] = {}

    def answers_at_once(self, message: Incoming) -> bool:
        entry = self._entry(message.text)
        return entry is not None and self._script.answers[entry].message_only

    async def answer(self, message: Incoming, setup: AgentSetup) -> Answer:
        turn = _Turn(message, setup)
        try:
            return await self._answer(message, turn)
        except (ScriptFailed, LookupError) as error:
            text = str(error.args[0])
            return Answer(
                text,
                State.FAILED,
                data=({"error_type": AGENT_ERROR, "error_message": text},),
                trajectory=turn.trajectory(self.name, text),
            )

    async def _answer(self, message: Incoming, turn: _Turn) -> Answer:
        position = self._entry(message.text)
        if position is None:
            raise ScriptFailed(f"the script has no answer to: {message.text[:200]}")
        self._given[position] += 1
        entry = self._script.answers[position]
        self._saved["prompt"] = message.text
        async with turn.connections:
            for action in entry.do:
                result = await turn.act(_filled_action(action, self._saved))
                if action.save is not None:
                    self._saved[action.save] = result
        return self._ending(entry, turn)

    def _entry(self, prompt: str) -> int | None:
        return next(
            (
                position
                for position, entry in enumerate(self._script.answers)
                if entry.fits(prompt, self._given[position])
            ),
            None,
        )

    def _ending(self, entry: ScriptedAnswer, turn: _Turn) -> Answer:
        said = filled(entry.answer, self._saved)
        text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        data: dict[str, Any] = {"usage": {"tool_call_count": turn.tool_call_count}}
        if isinstance(entry.answer, dict):
            data["structured_output"] = said
        if entry.error is not None:
            for key, value in entry.error.model_dump(exclude_none=True).items():
                data[f"error_{key}"] = value
        return Answer(
            text,
            State(entry.state),
            data=(data,),
            parts=tuple(filled(entry.parts, self._saved)),
            trajectory=turn.trajectory(self.name, text),
        )


class _Turn:
    """One turn: its connections to MCP servers, and its record."""

    def __init__(self, message: Incoming, setup: AgentSetup) -> None:
        self._message = message
        self._setup = setup
        self._steps: list[Step] = []
        self._sessions: dict[str, tuple[McpSession, frozenset[str]]] = {}
        self.connections = AsyncExitStack()

    @property
    def tool_call_count(self) -> int:
        return len(self._steps)

    async def act(self, action: Action) -> Any:
        """Do one thing; returns what it gave."""
        match action.verb:
            case "call":
                return await self._call(action)
            case "write":
                return await self._write(action)
            case "run":
                return await self._run(action)
            case "wait":
                await anyio.sleep(action.wait or 0)
            case "hang":
                await anyio.sleep_forever()
            case "exit":
                os._exit(action.exit or 0)
        return None

    def trajectory(self, name: str, answer: str) -> dict[str, Any]:
        """What this turn did, in ATIF."""
        values = self._setup.values
        asked = Step(step_id=1, source="user", message=self._message.text)
        answered = Step(step_id=1, source="agent", message=answer, llm_call_count=0)
        steps = [asked, *self._steps, answered]
        if system := values.get("system_prompt"):
            steps.insert(0, Step(step_id=1, source="system", message=str(system)))
        return Trajectory(
            session_id=self._message.context_id,
            agent=AgentInfo(name=name, version="1", model_name=values.get("model")),
            steps=[
                step.model_copy(update={"step_id": number})
                for number, step in enumerate(steps, 1)
            ],
        ).to_json()

    async def _call(self, action: Action) -> Any:
        from pytest_harbor.errors import HarborError

        assert action.call is not None
        try:
            session = await self._session_with(action.call, action.server)
            result = await session.call_tool(action.call, action.arguments)
        except HarborError as error:
            raise ScriptFailed(f"calling {action.call!r} failed: {error}") from error
        self._note(action.call, action.arguments, result.text, failed=result.is_error)
        return _plain_result(result.structured, result.text)

    async def _session_with(self, tool: str, server: str | None) -> McpSession:
        """The server that has the tool: a script that misspells one has a mistake."""
        names = list(self._setup.mcp_servers)
        if server is not None and server not in names:
            raise ScriptFailed(f"no MCP server {server!r}, only {names}")
        wanted = names if server is None else [server]
        for name in wanted:
            session, tools = await self._session(name)
            if tool in tools:
                return session
        raise ScriptFailed(f"no MCP server of {wanted} has a tool {tool!r}")

    async def _session(self, name: str) -> tuple[McpSession, frozenset[str]]:
        from pytest_harbor.protocols import mcp

        if name not in self._sessions:
            server = self._setup.mcp_servers[name]
            session = await self.connections.enter_async_context(
                mcp.connect(server.url, headers=server.headers)
            )
            tools = frozenset(tool.name for tool in await session.list_tools())
            self._sessions[name] = session, tools
        return self._sessions[name]

    async def _write(self, action: Action) -> None:
        assert action.write is not None
        content = (
            base64.b64decode(action.base64)
            if action.base64 is not None
            else (action.text or "").encode()
        )
        path = anyio.Path(action.write)
        try:
            await path.parent.mkdir(parents=True, exist_ok=True)
            await path.write_bytes(content)
        except OSError as error:
            raise ScriptFailed(f"writing {action.write} failed: {error}") from error
        self._note("write_file", {"path": action.write}, f"{len(content)} bytes")

    async def _run(self, action: Action) -> str:
        assert action.run is not None
        try:
            done = await anyio.run_process(action.run, check=False)
        except OSError as error:
            raise ScriptFailed(f"running {action.run[0]!r} failed: {error}") from error
        output = (done.stdout + done.stderr).decode(errors="replace")
        failed = done.returncode != 0
        self._note("run", {"command": action.run}, output, failed=failed)
        return output.strip()

    def _note(
        self,
        name: str,
        arguments: Mapping[str, Any],
        output: str,
        *,
        failed: bool = False,
    ) -> None:
        call_id = f"call_{len(self._steps) + 1}"
        result = ObservationResult(
            source_call_id=call_id,
            content=output,
            extra={"is_error": True} if failed else None,
        )
        self._steps.append(
            Step(
                step_id=1,
                source="agent",
                message="",
                llm_call_count=0,
                tool_calls=[
                    ToolCall(
                        tool_call_id=call_id,
                        function_name=name,
                        arguments=dict(arguments),
                    )
                ],
                observation=Observation(results=[result]),
            )
        )


def _filled_action(action: Action, saved: Mapping[str, Any]) -> Action:
    # Only what the script wrote is validated again, so that a verb stays the one.
    written = action.model_dump(exclude_unset=True)
    return Action.model_validate(filled(written, saved))


def _plain_result(structured: Any, text: str) -> Any:
    """What a tool gave: its structured result, else its text, as JSON if it is some."""
    if isinstance(structured, Mapping) and set(structured) == {"result"}:
        return structured["result"]  # how MCP wraps what is no object
    if structured is not None:
        return structured
    try:
        return json.loads(text)
    except ValueError:
        return text
