"""What an agent is to the server around it: one method, what it gets, what it gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_harbor.protocols.agent_card import (
    AGENT_CONFIG,
    MCP_CONFIG,
    SKILL_CONFIG,
    TRAJECTORY,
)
from pytest_harbor.protocols.reply import Part, State

CONFIG_KEYS: Final = (
    "model",
    "system_prompt",
    "effort",
    "max_turns",
    "max_thinking_tokens",
    "output_format",
    "timeout_seconds",
    "task_id",
    "model_params",
    "name",
    "description",
    "role",
)
"""What an agent takes that says nothing else."""


@dataclass(frozen=True)
class McpServer:
    """An MCP server whose tools the agent has."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Skill:
    """A skill the agent was taught. ``skill_md`` is the whole file."""

    name: str
    description: str
    skill_md: str


@dataclass(frozen=True)
class AgentSetup:
    """What the extensions have set when a turn begins."""

    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict)
    skills: Mapping[str, Skill] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    """Configuration values, keys of :data:`CONFIG_KEYS`."""


@dataclass(frozen=True)
class Incoming:
    """A message to the agent. Parts are in the form of task files."""

    text: str
    """The text parts, joined by newlines."""
    parts: tuple[Part, ...]
    task_id: str
    context_id: str


@dataclass(frozen=True)
class Answer:
    """The end of one turn of a served agent."""

    text: str = ""
    state: State = State.COMPLETED
    data: tuple[Mapping[str, Any], ...] = ()
    """Contents of data parts (``usage``, ``structured_output``, ``error_type``, ...)."""
    parts: tuple[Part, ...] = ()
    """Further parts."""
    trajectory: Any = None
    """What the trajectory extension gives for this task; any JSON."""


class ServedAgent(ABC):
    """The agent behind a server."""

    name: str
    description: str = ""
    version: str = "1"
    config_keys: Sequence[str] = CONFIG_KEYS
    offers: Sequence[str] = (MCP_CONFIG, SKILL_CONFIG, AGENT_CONFIG, TRAJECTORY)
    """URIs of the extensions on its card."""

    @abstractmethod
    async def answer(self, message: Incoming, setup: AgentSetup) -> Answer:
        """Do one turn. Cancelled when the A2A task is; an exception fails the task."""

    def answers_at_once(self, message: Incoming) -> bool:  # noqa: ARG002
        """Whether the answer is a message of its own, without a task around it."""
        return False

    async def aclose(self) -> None:  # noqa: B027 - optional
        """End what it holds, when the server stops."""
