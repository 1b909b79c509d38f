"""The built-in ``chat`` agent: a model, a shell in the sandbox, and a task's MCP tools.

A baseline to compare with, and the quickest way to try a task with a model. The loop
runs here, only the commands run in the sandbox: no key enters it, and a task without a
network can be worked on. Any endpoint that speaks OpenAI's chat completions will do.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import anyio

from pytest_harbor.agents.api import AgentNeeds, AgentResult, AgentTurn
from pytest_harbor.agents.chat_failures import (
    failure_of,
    may_pass,
    pause_before_retry,
)
from pytest_harbor.agents.chat_record import ChatRecord
from pytest_harbor.agents.chat_tools import (
    SHELL_TOOL,
    RemoteTools,
    arguments_of,
    run_shell,
)
from pytest_harbor.errors import (
    AGENT_TIMEOUT,
    AGENT_TOKEN_LIMIT,
    AGENT_TURN_LIMIT,
    AgentError,
    MissingExtra,
    Problem,
    ProtocolError,
    ServerRefused,
    ServerUnreachable,
)
from pytest_harbor.protocols import chat_completions
from pytest_harbor.protocols.chat_completions import (
    Completion,
    Endpoint,
    ToolCall,
    find_endpoint,
)
from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.tasks.folder.plan_types import EpisodePlan

NAME: Final = "chat"
DEFAULT_MAX_TURNS: Final = 100
REQUEST_SECONDS: Final = 600.0
TRIES: Final = 4
FIRST_PAUSE_SECONDS: Final = 1.0
SYSTEM_PROMPT: Final = """\
You work on a task in a Linux sandbox. Use the `shell` tool to look around and to do the \
work; each call runs a command of its own, in {workdir}. Nobody can answer questions. \
When the task is done, answer with a short text and call no tool."""

NO_RESULT: Final = "error: it was interrupted; what it did until then is done"


@dataclass
class _Session:
    """A conversation with the model (spec 16)."""

    messages: list[dict[str, Any]]
    tokens: int = 0


class _Limit(Exception):
    """Raised when a limit ends the work, which is an ordinary completion (spec 17)."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class _Loop:
    """One turn under way."""

    turn: AgentTurn
    session: _Session
    record: ChatRecord
    remote: RemoteTools
    tools: Sequence[Mapping[str, Any]]

    def tell(self, call: ToolCall, result: str) -> None:
        """Answer a tool call of the model."""
        self.record.result(call, result)
        self.session.messages.append(
            {"role": "tool", "tool_call_id": call.id, "content": result}
        )


class ChatAgent:
    """A tool loop around one model.

    Args:
        model: as the endpoint names it; ``openai/`` in front is taken off.
        api_base: the endpoint; else ``OPENAI_BASE_URL``, else OpenAI.
        max_turns: answers of the model per turn of the task.
        max_tokens: tokens in and out, over a whole session; ``None`` is no limit.
        pause_seconds: first pause after a request that may succeed when it is tried
            again; each further one is twice as long.
    """

    name = NAME
    can_continue = True
    takes_mcp_servers = True
    slack_seconds = 5.0

    def __init__(
        self,
        *,
        model: str | None = None,
        api_base: str | None = None,
        max_turns: int = DEFAULT_MAX_TURNS,
        max_tokens: int | None = None,
        pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self.model = model
        self._api_base = api_base
        self._max_turns = max_turns
        self._max_tokens = max_tokens
        self._pause_seconds = pause_seconds
        self._endpoint: Endpoint | None = None
        self._session: _Session | None = None

    def needs(self, plan: EpisodePlan, environ: Mapping[str, str]) -> AgentNeeds:  # noqa: ARG002
        """A model, and a key where the endpoint is OpenAI's own."""
        problems, missing = [], []
        if self.model is None:
            what = "agent 'chat' needs a model: give --harbor-model NAME"
            problems.append(Problem("", what))
        try:
            chat_completions.check_installed()
        except MissingExtra as error:
            problems.append(Problem("", f"agent 'chat': {error}"))
        try:
            self._endpoint = find_endpoint(self._api_base, None, environ)
        except ValueError as error:
            problems.append(Problem("", f"agent 'chat': {error}"))
            return AgentNeeds(problems=tuple(problems))
        has_key = self._endpoint.key != chat_completions.NO_KEY
        if self._endpoint.lacks_key:
            what = (
                "agent 'chat' needs OPENAI_API_KEY, or the URL of another endpoint in "
                "OPENAI_BASE_URL"
            )
            missing.append(Problem("", what))
        return AgentNeeds(
            secrets=(self._endpoint.key,) if has_key else (),
            problems=tuple(problems),
            missing_keys=tuple(missing),
        )

    async def run(self, turn: AgentTurn) -> AgentResult:
        """Work on one turn; a limit, and a failure with something to show, are results."""
        record = ChatRecord(self.model or "")
        if not turn.continues or self._session is None:
            self._session = self._new_session(turn, record)
        session = self._session
        session.messages.append({"role": "user", "content": turn.instruction})
        record.user(turn.instruction)
        failure: AgentError | None = None
        text: str | None = None
        remote = RemoteTools(turn)
        with anyio.move_on_after(turn.budget_seconds) as scope:
            try:
                async with AsyncExitStack() as stack:
                    await remote.connect(turn.mcp_servers, stack)
                    tools = (SHELL_TOOL, *remote.definitions)
                    text = await self._loop(_Loop(turn, session, record, remote, tools))
            except _Limit as limit:
                failure = AgentError(str(limit), limit.kind)
            except AgentError as error:
                failure = error
            finally:
                # Also when the sandbox died or the run was cancelled.
                record.write(turn.logs)
        if scope.cancelled_caught:
            failure = AgentError(
                f"chat ran out of its {turn.budget_seconds:g} s", AGENT_TIMEOUT
            )
        return AgentResult(
            text=text,
            trajectory=record.trajectory(),
            input_tokens=record.input_tokens,
            output_tokens=record.output_tokens,
            failure=failure,
            warnings=tuple(remote.warnings),
        )

    async def end_session(self, sandbox: Sandbox) -> None:  # noqa: ARG002
        """Forget the conversation."""
        self._session = None

    def _new_session(self, turn: AgentTurn, record: ChatRecord) -> _Session:
        prompt = SYSTEM_PROMPT.format(workdir=posixpath.normpath(turn.sandbox.workdir))
        record.system(prompt)
        return _Session([{"role": "system", "content": prompt}])

    async def _loop(self, loop: _Loop) -> str:
        for _ in range(self._max_turns):
            self._check_tokens(loop.session)
            answer = await self._ask(loop)
            loop.session.tokens += answer.usage.input_tokens or 0
            loop.session.tokens += answer.usage.output_tokens or 0
            loop.record.answer(answer)
            loop.session.messages.append(_as_message(answer))
            if answer.tool_calls:
                await self._call_all(loop, answer.tool_calls)
            elif answer.finish_reason == "length":
                raise _Limit(
                    "the endpoint cut the model's answer off, for its length",
                    AGENT_TOKEN_LIMIT,
                )
            else:
                return answer.text
        raise _Limit(
            f"chat used up its {self._max_turns} turns (harbor_chat_max_turns)",
            AGENT_TURN_LIMIT,
        )

    def _check_tokens(self, session: _Session) -> None:
        if self._max_tokens is not None and session.tokens >= self._max_tokens:
            raise _Limit(
                f"chat used {session.tokens} of its {self._max_tokens} tokens "
                "(harbor_chat_max_tokens)",
                AGENT_TOKEN_LIMIT,
            )

    async def _call_all(self, loop: _Loop, calls: Sequence[ToolCall]) -> None:
        """Answer every call, also where the budget ends in the middle.

        Endpoints refuse a conversation with a call that has no answer, so that the session
        could not go on in the next turn.
        """
        waiting = list(calls)
        try:
            while waiting:
                result = await self._call(loop, waiting[0])
                loop.tell(waiting.pop(0), result)
        finally:
            for call in waiting:
                loop.tell(call, NO_RESULT)

    async def _call(self, loop: _Loop, call: ToolCall) -> str:
        """Call a tool. What is wrong with the call, the model is told."""
        try:
            arguments = arguments_of(call)
        except ValueError as error:
            return f"error: {error}"
        if call.name == SHELL_TOOL["function"]["name"]:
            return await run_shell(loop.turn, arguments)
        return await loop.remote.call(call.name, arguments)

    async def _ask(self, loop: _Loop) -> Completion:
        """Ask the model; what may pass is tried again within the turn's budget."""
        pause = self._pause_seconds
        for number in range(1, TRIES + 1):
            try:
                return await self._ask_once(loop)
            except (ServerUnreachable, ServerRefused) as error:
                if number == TRIES or not may_pass(error):
                    raise failure_of(error) from error
                wait = pause_before_retry(error, pause)
            except (ProtocolError, MissingExtra) as error:
                raise failure_of(error) from error
            await anyio.sleep(wait)
            pause *= 2
        raise AssertionError("the last try returns or raises")

    async def _ask_once(self, loop: _Loop) -> Completion:
        assert self._endpoint is not None
        assert self.model is not None
        return await chat_completions.complete(
            self.model,
            loop.session.messages,
            tools=loop.tools,
            api_base=self._endpoint.url,
            api_key=self._endpoint.key,
            timeout_seconds=REQUEST_SECONDS,
        )


def _as_message(answer: Completion) -> dict[str, Any]:
    """The model's answer as the next request holds it."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.tool_calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.tool_calls
        ]
    return message
