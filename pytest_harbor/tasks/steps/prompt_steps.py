"""The step that prompts an agent (spec 7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pytest_harbor.tasks.steps.prompt_parts import Parts
from pytest_harbor.tasks.steps.step import (
    DEFAULT_AGENT_NAME,
    Fault,
    Name,
    NameKind,
    Step,
)
from pytest_harbor.tasks.steps.values import (
    Count,
    HttpUrl,
    Id,
    OutputFormat,
    Seconds,
)

DEFAULT_USER_NAME = "human_agent"


class PromptAgent(Step):
    """``prompt_agent``: sends a prompt and waits until the agent is done (spec 7)."""

    type: Literal["prompt_agent"] = "prompt_agent"
    prompt: str | None = None
    """The prompt as text."""
    parts: Parts = ()
    """The prompt as parts of an A2A message, as the file has them."""
    agent_name: Id = DEFAULT_AGENT_NAME
    """Whom to prompt."""
    prompt_id: Id | None = None
    """Name of the reply; unset: a random one."""
    timeout_seconds: Seconds = 600
    """Limit of one turn of the agent."""
    model: str | None = None
    """Model to ask the agent to use."""
    output_format: OutputFormat | None = None
    """Asks for a structured reply: ``{"type": "json_schema", "schema": {...}}``."""
    max_conversation_turns: Count = 1
    """Above 1 a conversation, of at most that many turns of the agent."""
    user_agent_name: Id = DEFAULT_USER_NAME
    """Deployed agent that plays the user."""
    user_a2a_url: HttpUrl | None = None
    """A person's A2A endpoint, instead."""
    system_prompt: str | None = None
    """Set on the agent before this prompt."""
    max_turns: Count | None = None
    """Limit of the agent's inner loop."""
    context_id: Id | None = None
    """A2A context to continue; unset: a new one."""
    poll_interval_seconds: Seconds = 2
    """Longest pause between two looks at the agent's task."""
    user_agent_timeout_seconds: Seconds = 600
    """Limit of one turn of the user."""
    user_output_format: OutputFormat | None = None
    """What the user answers, instead of ``{message, done}``."""
    user_model: str | None = None
    """Model to ask the user agent to use."""
    model_params: dict[str, Any] | None = None
    """Provider parameters, passed on."""
    effort: str | None = None
    """Reasoning setting, passed on."""
    max_thinking_tokens: Count | None = None
    """Reasoning setting, passed on."""

    unsupported = frozenset(
        {
            "agentenv_tools",
            "harness",
            "live_trajectory",
            "snapshot_config",
            "trajectory_output_prefix",
        }
    )
    written_kinds = frozenset[NameKind]({"prompt"})

    @property
    def is_conversation(self) -> bool:
        """True when the replies are answered by a user."""
        return self.max_conversation_turns > 1

    def reads(self) -> Iterator[Name]:
        """The agent, and the one that plays the user.

        Without a name in the file the user may also be the configured person.
        """
        yield Name("agent", self.agent_name, "agent_name")
        if (
            self.is_conversation
            and self.user_a2a_url is None
            and self.user_agent_name != DEFAULT_USER_NAME
        ):
            yield Name("agent", self.user_agent_name, "user_agent_name")

    def writes(self) -> Iterator[Name]:
        """The reply."""
        if self.prompt_id is not None:
            yield Name("prompt", self.prompt_id, "prompt_id")

    def faults(self) -> Iterator[Fault]:
        """Either a text or parts."""
        if self.prompt is None and not self.parts:
            yield Fault("", "has no prompt: give prompt or parts", is_lack=True)
        elif self.prompt is not None and self.parts:
            yield Fault("", "has two prompts: give either prompt or parts")
