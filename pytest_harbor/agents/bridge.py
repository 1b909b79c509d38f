"""Serve a command-line agent over A2A, so that a step task can deploy it (spec 6).

The server is here, in the runner's process; the command runs in the agent's sandbox, turn
by turn, as it does for a task folder. So a sandbox needs no Python, and the command's keys
never lie in a server that it could read.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import anyio
import anyio.to_thread

from pytest_harbor.agents.api import AgentNeeds, AgentResult, AgentTurn, McpServer
from pytest_harbor.agents.command.agent import CommandAgent
from pytest_harbor.agents.command.declaration import AgentDeclaration
from pytest_harbor.agents.command.needs import needs_of
from pytest_harbor.agents.outcome_policy import failure_class
from pytest_harbor.errors import AgentError, SandboxError
from pytest_harbor.protocols.agent_card import (
    AGENT_CONFIG,
    MCP_CONFIG,
    SKILL_CONFIG,
    TRAJECTORY,
)
from pytest_harbor.protocols.reply import AGENT_ERROR, INFRA_ERROR, Part, State
from pytest_harbor.protocols.served_agent import (
    AgentSetup,
    Answer,
    Incoming,
    ServedAgent,
)
from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.environment import NetworkMode
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.sandboxes.transfer_types import Upload

BRIDGE_CONFIG_KEYS: Final = (
    "model",
    "system_prompt",
    "output_format",
    "timeout_seconds",
)
"""What every command can be told, in its instruction or by its model flag."""
PROMPT_FILES: Final = "/tmp/prompt_files"  # noqa: S108 - in the agent's sandbox
_OWN_FAULT: Final = ("run", "limit")
"""Failures of an agent that tried; of the other classes it could not run."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass
class _Conversation:
    """An A2A context: one session of the command, or turns that are told what was said."""

    agent: CommandAgent
    turns: int = 0
    said: list[tuple[str, str]] = field(default_factory=list)
    """Prompts and replies, for a command that cannot go on with a session."""


class BridgedAgent(ServedAgent):
    """A declared command, run in ``sandbox`` for each message, one at a time.

    Messages of one A2A context are turns of one session; a command that cannot continue a
    session is told the conversation so far. Later messages may change the model, whose
    keys are looked up in ``environ`` as the declaration says.

    ``env`` are variables for the command beside the declaration's, ``logs`` a folder on
    the host for what it prints. ``masker`` is the run's: it masks that folder, and comes to
    know the command's keys. Answers are masked for those alone: steps go on with them.
    """

    def __init__(
        self,
        declaration: AgentDeclaration,
        sandbox: Sandbox,
        *,
        logs: Path,
        environ: Mapping[str, str],
        masker: Masker,
        env: Mapping[str, str] | None = None,
        model: str | None = None,
        network: NetworkMode = "public",
    ) -> None:
        self.name = declaration.name
        self.description = declaration.description
        self.config_keys = BRIDGE_CONFIG_KEYS
        self.offers = tuple(_offers(declaration))
        self._declaration = declaration
        self._sandbox = sandbox
        self._logs = logs
        self._environ = environ
        self._masker = masker
        self._env = dict(env or {})
        self._model = model
        self._network: NetworkMode = network
        self._conversations: dict[str, _Conversation] = {}
        self._turns = 0
        self._lock = anyio.Lock()

    async def answer(self, message: Incoming, setup: AgentSetup) -> Answer:
        async with self._lock:
            return await self._answer(message, setup)

    async def _answer(self, message: Incoming, setup: AgentSetup) -> Answer:
        conversation, needs = self._conversation(message.context_id, setup)
        own_keys = Masker(needs.secrets)
        self._masker.add(*needs.secrets)
        if lacking := [str(problem) for problem in _lacking(needs)]:
            return _failed("; ".join(lacking), INFRA_ERROR, "agent_config_error")
        self._turns += 1
        logs = self._logs / f"turn-{self._turns:02d}"
        await anyio.Path(logs).mkdir(parents=True, exist_ok=True)
        try:
            turn = await self._turn(message, setup, conversation, needs, logs)
            result = await conversation.agent.run(turn)
        except AgentError as error:
            result = AgentResult(failure=error)
        except SandboxError as error:
            return _failed(str(error), INFRA_ERROR, error.kind)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._masker.folder, logs)
        conversation.turns += 1
        conversation.said.append((message.text, result.text or ""))
        return _masked(_read(result), own_keys)

    def _conversation(
        self, context_id: str, setup: AgentSetup
    ) -> tuple[_Conversation, AgentNeeds]:
        known = self._conversations.get(context_id)
        if known is None:
            asked = setup.values.get("model")
            agent = CommandAgent(
                self._declaration,
                model=asked if isinstance(asked, str) else self._model,
            )
            known = self._conversations[context_id] = _Conversation(agent)
        needs = needs_of(
            self._declaration,
            self.name,
            known.agent.model,
            self._network,
            self._environ,
        )
        return known, needs

    async def _turn(
        self,
        message: Incoming,
        setup: AgentSetup,
        conversation: _Conversation,
        needs: AgentNeeds,
        logs: Path,
    ) -> AgentTurn:
        continues = conversation.turns > 0 and conversation.agent.can_continue
        files = await self._place_files(message)
        return AgentTurn(
            instruction=instruction(
                message,
                setup.values,
                files=files,
                is_first=not continues,
                said=() if continues else conversation.said,
            ),
            sandbox=self._sandbox,
            step=f"turn-{self._turns:02d}",
            index=conversation.turns,
            user=self._declaration.user,
            budget_seconds=_seconds(setup.values.get("timeout_seconds")),
            logs=logs,
            env={**needs.env, **self._env},
            continues=continues,
            mcp_servers=tuple(
                McpServer(
                    server.name,
                    "streamable-http",
                    url=server.url,
                    headers=server.headers,
                )
                for server in setup.mcp_servers.values()
            ),
            skills=await self._skills(setup),
            network=self._network,
        )

    async def _skills(self, setup: AgentSetup) -> tuple[Path, ...]:
        """A folder on the host with the skills, from where they are placed."""
        if not setup.skills:
            return ()
        home = self._logs / "skills"
        for skill in setup.skills.values():
            folder = anyio.Path(home / skill.name)
            await folder.mkdir(parents=True, exist_ok=True)
            await (folder / "SKILL.md").write_text(skill.skill_md, encoding="utf-8")
        return (home,)

    async def _place_files(self, message: Incoming) -> list[str]:
        """Put the message's files into the sandbox; returns where they are."""
        uploads = []
        places = []
        for number, part in enumerate(message.parts, start=1):
            if part.get("kind") != "file":
                continue
            file = part["file"]
            if "uri" in file:
                places.append(str(file["uri"]))
                continue
            name = _UNSAFE.sub("-", str(file.get("name") or "file")).strip("-.")
            target = f"{PROMPT_FILES}/{self._turns:02d}-{number}-{name or 'file'}"
            try:
                content = base64.b64decode(file["bytes"], validate=True)
            except (binascii.Error, ValueError) as error:
                raise AgentError(f"file {number} is not base64: {error}") from error
            uploads.append(Upload(content, target))
            places.append(target)
        if uploads:
            await self._sandbox.upload(uploads)
        return places


def instruction(
    message: Incoming,
    values: Mapping[str, Any],
    *,
    files: Sequence[str] = (),
    is_first: bool = True,
    said: Sequence[tuple[str, str]] = (),
) -> str:
    """What the command is told: everything that A2A says beside the text, in words. Pure.

    The system prompt comes first and only once in a session.
    """
    paragraphs = []
    if is_first and (system := values.get("system_prompt")):
        paragraphs.append(str(system))
    if said:
        lines = [f"User: {asked}\n\nYou: {answered}" for asked, answered in said]
        paragraphs.append("The conversation so far:\n\n" + "\n\n".join(lines))
        paragraphs.append("The user's next message:")
    paragraphs.append(message.text)
    paragraphs += [
        json.dumps(part["data"], ensure_ascii=False)
        for part in message.parts
        if part.get("kind") == "data"
    ]
    if files:
        paragraphs.append("Files of this message: " + ", ".join(files))
    if schema := _schema(values.get("output_format")):
        paragraphs.append(
            "End with one JSON object and nothing after it. It must fit this JSON "
            f"schema: {json.dumps(schema)}"
        )
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _offers(declaration: AgentDeclaration) -> list[str]:
    """What of the extensions the command can do something with."""
    offers = [AGENT_CONFIG]
    if declaration.mcp_config is not None:
        offers.append(MCP_CONFIG)
    if declaration.skills is not None:
        offers.append(SKILL_CONFIG)
    if declaration.trajectory is not None:
        offers.append(TRAJECTORY)
    return offers


def _lacking(needs: AgentNeeds) -> list[object]:
    return [*needs.missing_keys, *needs.problems]


def _schema(output_format: object) -> object:
    return output_format.get("schema") if isinstance(output_format, dict) else None


def _seconds(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else None  # type: ignore[arg-type, operator]


def _read(result: AgentResult) -> Answer:
    """An agent's result as the end of an A2A task."""
    used: dict[str, Any] = {
        "tool_call_count": _tool_calls(result.trajectory),
        "input_tokens": result.input_tokens,
        "output_tokens": result.output_tokens,
        "cost_usd": result.cost_usd,
    }
    data: dict[str, Any] = {}
    if usage := {key: value for key, value in used.items() if value is not None}:
        data["usage"] = usage
    failure = result.failure
    if failure is not None:
        group = failure_class(failure.kind, failure.status)
        data["error_type"] = AGENT_ERROR if group in _OWN_FAULT else INFRA_ERROR
        data["error_code"] = failure.kind
        data["error_message"] = str(failure)
    return Answer(
        text=result.text or "",
        state=State.COMPLETED if failure is None else State.FAILED,
        data=(data,) if data else (),
        trajectory=result.trajectory,
    )


def _tool_calls(trajectory: Mapping[str, Any] | None) -> int | None:
    if trajectory is None:
        return None
    return sum(
        len(step.get("tool_calls") or ()) for step in trajectory.get("steps", ())
    )


def _failed(message: str, error_type: str, code: str) -> Answer:
    data = {"error_type": error_type, "error_code": code, "error_message": message}
    return Answer(state=State.FAILED, data=(data,))


def _masked(answer: Answer, masker: Masker) -> Answer:
    """The answer without the secrets that its command was given."""
    data = tuple(cast("Part", masker.data(dict(part))) for part in answer.data)
    return Answer(
        text=masker.text(answer.text),
        state=answer.state,
        data=data,
        trajectory=masker.data(answer.trajectory),
    )
