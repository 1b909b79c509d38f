"""The user's side of a conversation: a deployed agent, or a person at an endpoint (spec 7.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pytest_harbor.errors import StepError
from pytest_harbor.graphs.conversations import (
    AGENT_SILENT,
    USER_DONE,
    USER_ENDED,
    USER_SILENT,
    EndReason,
)
from pytest_harbor.protocols.reply import Part, Reply, State
from pytest_harbor.tasks.steps.model import DEFAULT_USER_NAME, PromptAgent

if TYPE_CHECKING:
    from pytest_harbor.graphs.context import DeployedAgent, RunContext

PERSON: Final = "person"
"""Name of a user that is no agent, in records."""

MESSAGE_AND_DONE: Final[Mapping[str, Any]] = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {
            "message": {
                "type": "string",
                "description": "What you say next to the assistant.",
            },
            "done": {
                "type": "boolean",
                "description": "True when you have nothing more to say; the message "
                "is not sent then.",
            },
        },
        "required": ["message", "done"],
        "additionalProperties": False,
    },
}
"""``output_format`` that a user agent is configured with."""


@dataclass(frozen=True)
class User:
    """Who answers the agent. ``agent`` is ``None`` for a person."""

    name: str
    url: str
    agent: DeployedAgent | None = None

    @property
    def is_person(self) -> bool:
        """True for an endpoint that the run did not deploy."""
        return self.agent is None


@dataclass(frozen=True)
class UserAnswer:
    """What follows from one turn of the user: the next prompt, or the end."""

    parts: tuple[Part, ...] = ()
    end_reason: EndReason | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Keys of its object beside ``message`` and ``done``."""


def find_user(
    step: PromptAgent, context: RunContext, human_a2a_url: str | None
) -> User | None:
    """Who plays the user; ``None`` for a step of one turn.

    Raises:
        NotDeployed: the named agent is not there.
        StepError: nobody is named, and no person is configured.
    """
    if not step.is_conversation:
        return None
    if step.user_a2a_url is not None:
        return User(PERSON, step.user_a2a_url)
    deployed = {agent.agent_name for agent in context.deployed_agents}
    if step.user_agent_name in deployed or step.user_agent_name != DEFAULT_USER_NAME:
        agent = context.agent(step.user_agent_name)
        return User(agent.agent_name, agent.a2a_url, agent)
    if human_a2a_url:
        return User(PERSON, human_a2a_url)
    raise StepError(
        f"a conversation of {step.max_conversation_turns} turns needs a user: name a "
        "deployed agent (user_agent_name) or an endpoint (user_a2a_url), or set "
        "harbor_human_a2a_url"
    )


def to_user(reply: Reply) -> tuple[Part, ...]:
    """What the user gets of the agent's reply: its parts as they are; () if all are blank."""
    if not any(_says_something(part) for part in reply.parts):
        return ()
    return tuple(part for part in reply.parts if part.get("text") != "")


def read_user_answer(
    reply: Reply, *, is_person: bool, may_lack_done: bool = False
) -> UserAnswer:
    """The next prompt in a user's answer, or why there is none.

    ``may_lack_done`` is for a format of the task's own (``user_output_format``).
    """
    if reply.state is not State.COMPLETED:
        return UserAnswer(end_reason=f"{USER_ENDED}{reply.state.value}")
    said = None if is_person else reply.structured_output
    if may_lack_done and isinstance(said, Mapping):
        said = {"done": False, **said}
    if isinstance(said, Mapping) and _is_message_and_done(said):
        fields = {key: said[key] for key in said if key not in ("message", "done")}
        if said["done"]:
            return UserAnswer(end_reason=USER_DONE, fields=fields)
        return _next_prompt(_text_part(said["message"]), fields)
    if is_person:
        return _next_prompt(to_user(reply))
    return _next_prompt(_text_part(reply.text))


def silent_agent(parts: tuple[Part, ...]) -> EndReason | None:
    """The end of a conversation whose agent has nothing to send to the user."""
    return None if parts else AGENT_SILENT


def _next_prompt(
    parts: tuple[Part, ...], fields: Mapping[str, Any] | None = None
) -> UserAnswer:
    reason = None if parts else USER_SILENT
    return UserAnswer(parts, reason, fields or {})


def _text_part(text: str) -> tuple[Part, ...]:
    return ({"kind": "text", "text": text},) if text.strip() else ()


def _says_something(part: Part) -> bool:
    return part.get("kind") != "text" or bool(str(part.get("text", "")).strip())


def _is_message_and_done(said: Mapping[str, Any]) -> bool:
    return isinstance(said.get("message"), str) and isinstance(said.get("done"), bool)
