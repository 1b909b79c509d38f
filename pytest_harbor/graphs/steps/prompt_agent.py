"""``prompt_agent``: a prompt, or a conversation, with a deployed agent (spec 7)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from pytest_harbor.errors import HarborError, ProtocolError
from pytest_harbor.graphs.context import (
    Change,
    DeployedAgent,
    PromptResponse,
    Put,
    RunContext,
)
from pytest_harbor.graphs.conversations import (
    AGENT_FAILED,
    ANSWERED,
    TURN_LIMIT,
    EndReason,
    OpenConversation,
    key_part,
)
from pytest_harbor.graphs.turns import (
    connect,
    keep_trajectory,
    take_turn,
    text_parts,
    turn_failure,
)
from pytest_harbor.graphs.users import (
    MESSAGE_AND_DONE,
    User,
    UserAnswer,
    find_user,
    read_user_answer,
    silent_agent,
    to_user,
)
from pytest_harbor.protocols.reply import AGENT_ERROR, INFRA_ERROR, Part, Reply, State
from pytest_harbor.tasks.steps.model import PromptAgent

if TYPE_CHECKING:
    from pytest_harbor.events import Json
    from pytest_harbor.graphs.steps.api import StepRun
    from pytest_harbor.protocols.a2a import AgentConnection

TASK: Final = "task"
"""Who prompts in a step of one turn, in the conversation record."""
_STEP_VALUES: Final = (
    "system_prompt",
    "effort",
    "max_turns",
    "max_thinking_tokens",
    "output_format",
    "model_params",
)
"""Fields of the step that an agent is configured with as they are (7.1)."""
_CLOSE_SECONDS: Final = 10.0


async def prompt_agent(step: PromptAgent, run: StepRun) -> None:
    """Prompt an agent and write its ``PromptResponse``, also when it failed.

    Raises:
        NotDeployed: no agent of that name; nothing is written.
        StepError: the agent failed, cannot be reached or did not end in time.
        ServerNotReady, ProtocolError: the agent or the user cannot be spoken to.
    """
    agent = run.context.agent(step.agent_name)
    user = find_user(step, run.context, run.settings.human_a2a_url)
    prompting = _Prompting(step, run, agent, user)
    try:
        await prompting.run()
    except HarborError as error:
        prompting.outcome.fails_with(run.masker.text(str(error)))
        run.write(*prompting.changes())
        raise
    run.write(*prompting.changes())


def wanted_model(step: PromptAgent, context: RunContext) -> str | None:
    """The model to ask the agent for (7.1): step override, run, step, default."""
    return (
        _step_override(step.id, context.metadata)
        or context.agent_model
        or step.model
        or context.default_agent_model
    )


def _step_override(step_id: str, metadata: Mapping[str, Any]) -> str | None:
    found: Any = metadata
    for key in ("user_overrides", "step_params", step_id, "model"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else None


@dataclass
class _Outcome:
    """What the turns so far come to."""

    reply: Reply | None = None
    trajectory_urls: list[str | None] = field(default_factory=list)
    sent_parts: list[list[Json] | None] = field(default_factory=list)
    tool_call_count: int | None = None
    error_type: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    user_fields: list[Json] = field(default_factory=list)

    def add(self, reply: Reply, sent: list[Json] | None) -> None:
        """Count a turn of the agent."""
        self.reply = reply
        self.sent_parts.append(sent)
        self.trajectory_urls.append(None)
        if reply.tool_call_count is not None:
            self.tool_call_count = (self.tool_call_count or 0) + reply.tool_call_count
        self.error_type = reply.error_type
        self.error_code = reply.error_code
        self.error_message = reply.error_message

    def fails_with(self, message: str, error_type: str = INFRA_ERROR) -> None:
        """Say why, where the agent itself did not."""
        self.error_type = self.error_type or error_type
        self.error_message = self.error_message or message


class _Prompting:
    """One execution of the step."""

    def __init__(
        self, step: PromptAgent, run: StepRun, agent: DeployedAgent, user: User | None
    ) -> None:
        self._step = step
        self._run = run
        self._agent = agent
        self._user = user
        self._instance = run.instance(agent.instance_id)
        self._prompt_id = step.prompt_id or uuid.uuid4().hex
        self._context_id = step.context_id or uuid.uuid4().hex
        self._wanted_model = wanted_model(step, run.context)
        self._model: str | None = None
        run_id = run.context.instance_id
        self._prefix = f"runs/{run_id}/prompts/{key_part(self._prompt_id)}/"
        self._conversation = OpenConversation(
            run.store,
            run.masker,
            run_id=run_id,
            source=TASK if user is None else user.name,
            target=agent.agent_name,
        )
        self.outcome = _Outcome()

    async def run(self) -> None:
        """Connect, configure, converse. Raises as :func:`prompt_agent`."""
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(
                await connect(self._agent.a2a_url, self._instance)
            )
            partner = None
            if self._user is not None:
                partner = _Partner(self._step, self._run, self._user)
                await partner.connect(stack)
            await self._configure(connection)
            await self._converse_to_the_end(connection, partner)

    def changes(self) -> list[Change]:
        """What the step writes to the context."""
        step, outcome, reply = self._step, self.outcome, self.outcome.reply
        response = PromptResponse(
            prompt_id=self._prompt_id,
            response=reply.text if reply else "",
            prompt_text=step.prompt,
            agent_trajectory_object_url=(
                outcome.trajectory_urls[-1] if outcome.trajectory_urls else None
            ),
            agent_trajectory_object_prefix=self._prefix,
            target_agent_per_turn_trajectory_object_urls=tuple(outcome.trajectory_urls),
            source_agent_per_turn_prompt_parts=tuple(outcome.sent_parts),
            tool_call_count=outcome.tool_call_count,
            model=self._model,
            error_type=outcome.error_type,
            error_code=outcome.error_code,
            error_message=outcome.error_message,
            agent_session_id=reply.task_id if reply else None,
            a2a_context_id=reply.context_id if reply else self._context_id,
            agent_name=self._agent.agent_name,
            step_id=step.id,
            structured_output=reply.structured_output if reply else None,
        )
        conversation_id = self._conversation.record.conversation_id
        changes: list[Change] = [
            response,
            Put("models", "solver", step.id, self._model),
            Put("a2a_conversations", step.id, conversation_id),
        ]
        if self._user is not None and not self._user.is_person:
            model = step.user_model or self._run.settings.models.user
            changes.append(Put("models", "user simulator", step.id, model))
        if outcome.user_fields:
            changes.append(Put("usersim_turn_outputs", step.id, outcome.user_fields))
        return changes

    async def _configure(self, connection: AgentConnection) -> None:
        step = self._step
        sent = await connection.configure(
            {
                "model": self._wanted_model,
                "timeout_seconds": step.timeout_seconds,
                "task_id": self._run.context.metadata.get("task_id"),
                **{key: getattr(step, key) for key in _STEP_VALUES},
            }
        )
        if "model" in sent:
            self._model = self._wanted_model
        asked = {key for key in _STEP_VALUES if getattr(step, key) is not None}
        if unheard := sorted(asked - sent):
            self._run.warn(
                f"agent '{step.agent_name}' does not take {', '.join(unheard)}"
            )
        if self._wanted_model is not None and self._model is None:
            self._run.warn(
                f"agent '{step.agent_name}' takes no model; it uses its own, not "
                f"{self._wanted_model}"
            )

    async def _converse_to_the_end(
        self, connection: AgentConnection, partner: _Partner | None
    ) -> None:
        reason: EndReason = AGENT_FAILED
        try:
            reason = await self._converse(connection, partner)
        finally:
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                await self._conversation.close(reason)

    async def _converse(
        self, connection: AgentConnection, partner: _Partner | None
    ) -> EndReason:
        step = self._step
        parts: Sequence[Part] = step.parts or text_parts(step.prompt or "")
        answers: str | None = None
        for number in range(1, step.max_conversation_turns + 1):
            is_first_text = number == 1 and step.prompt is not None
            reply = await self._turn(
                connection, parts, answers, None if is_first_text else parts
            )
            if partner is None:
                return ANSWERED
            if number == step.max_conversation_turns:
                break
            if reason := silent_agent(to_user(reply)):
                return reason
            answer = await partner.answer(reply, self._conversation)
            if answer.fields:
                entry = {"turn": number, "fields": dict(answer.fields)}
                self.outcome.user_fields.append(cast("Json", entry))
            if answer.end_reason is not None:
                return answer.end_reason
            parts = answer.parts
            # An agent that asks for input goes on with the task that it asked in.
            answers = reply.task_id if reply.state is State.INPUT_REQUIRED else None
        return TURN_LIMIT

    async def _turn(
        self,
        connection: AgentConnection,
        parts: Sequence[Part],
        answers: str | None,
        sent: Sequence[Part] | None,
    ) -> Reply:
        asked_at = time.time()
        reply = await take_turn(
            connection,
            parts,
            instance=self._instance,
            context_id=self._context_id,
            task_id=answers,
            timeout_seconds=self._step.timeout_seconds,
            poll_seconds=self._step.poll_interval_seconds,
        )
        plain = None if sent is None else [cast("Json", dict(part)) for part in sent]
        self.outcome.add(reply, plain)
        await self._conversation.prompted(parts, reply, asked_at=asked_at)
        self.outcome.trajectory_urls[-1] = await keep_trajectory(
            self._run, connection, reply, self._prefix
        )
        if reply.completed or (
            reply.state is State.INPUT_REQUIRED and self._step.is_conversation
        ):
            return reply
        failure = await turn_failure(
            self._run, self._agent.agent_name, self._instance, reply
        )
        self.outcome.fails_with(reply.text or str(failure), AGENT_ERROR)
        raise failure


class _Partner:
    """The user of a conversation."""

    _connection: AgentConnection

    def __init__(self, step: PromptAgent, run: StepRun, user: User) -> None:
        self._step = step
        self._run = run
        self._user = user
        self._instance = run.instance(user.agent.instance_id) if user.agent else None
        self._context_id = uuid.uuid4().hex

    async def connect(self, stack: AsyncExitStack) -> None:
        """Reach the user, and ask an agent for ``{message, done}``; a person for nothing.

        Raises as :func:`turns.connect`.
        """
        user, step = self._user, self._step
        try:
            connection = await connect(
                user.url, self._instance, same_origin=not user.is_person
            )
        except ProtocolError as error:
            error.args = (f"the user ({user.name}) cannot be spoken to: {error}",)
            raise
        self._connection = await stack.enter_async_context(connection)
        if not user.is_person:
            await self._connection.configure(
                {
                    "output_format": step.user_output_format or dict(MESSAGE_AND_DONE),
                    "model": step.user_model or self._run.settings.models.user,
                    "timeout_seconds": step.user_agent_timeout_seconds,
                }
            )

    async def answer(self, reply: Reply, conversation: OpenConversation) -> UserAnswer:
        """What the user says to the agent's reply."""
        answered = await take_turn(
            self._connection,
            to_user(reply),
            instance=self._instance,
            context_id=self._context_id,
            timeout_seconds=self._step.user_agent_timeout_seconds,
            poll_seconds=self._step.poll_interval_seconds,
        )
        answer = read_user_answer(
            answered,
            is_person=self._user.is_person,
            may_lack_done=self._step.user_output_format is not None,
        )
        conversation.user_answered(answered, goes_on=answer.end_reason is None)
        return answer
