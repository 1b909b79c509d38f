"""The seam between the episode engine and agents (design 5.3)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pytest_harbor.errors import AgentError, Problem
from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.environment import NetworkMode, User
from pytest_harbor.sandboxes.install_script import InstallScript
from pytest_harbor.tasks.folder.plan_types import McpTransport, TurnPlan


@dataclass(frozen=True)
class McpServer:
    """An MCP server for the agent, every template resolved (spec 3.8).

    ``localhost`` in ``url`` is the sandbox's own: what listens on the host is not there
    in a container.
    """

    name: str
    transport: McpTransport
    url: str | None = None
    """Of ``sse`` and ``streamable-http``."""
    command: str | None = None
    """Of ``stdio``; run inside the sandbox."""
    args: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    """May hold secrets."""


@dataclass(frozen=True)
class AgentResult:
    """What an agent says of its run; every field is optional."""

    text: str | None = None
    """The final message, the ``response`` of a Python verifier."""
    trajectory: Mapping[str, Any] | None = None
    """A transcript in ATIF v1.7, written to ``/logs/agent/trajectory.json``."""
    exit_code: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    failure: AgentError | None = None
    """How it failed, for an agent that has something to show all the same."""
    warnings: tuple[str, ...] = ()
    """What a person should hear of."""


@dataclass(frozen=True)
class AgentNeeds:
    """What an agent needs for an episode, known before anything starts."""

    install: InstallScript | None = None
    """What its sandbox must have beside the image."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Becomes ``AgentTurn.env``."""
    secrets: tuple[str, ...] = ()
    """Values that are masked wherever text leaves the engine."""
    user: User | None = None
    """Whom it runs as where the task names nobody."""
    missing_keys: tuple[Problem, ...] = ()
    """Variables of the host that are not set: the episode is refused."""
    problems: tuple[Problem, ...] = ()
    """Other reasons to refuse it."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentTurn:
    """What an agent gets for one turn.

    ``sandbox`` is the agent's sandbox: awaitable for an ``async def run``, sync
    for a plain ``def run``. The budget is enforced by the engine; it is here so
    that an agent can plan.
    """

    instruction: str
    sandbox: Sandbox
    step: str
    index: int
    """0-based."""
    user: User | None
    budget_seconds: float | None
    logs: Path
    """Host folder for the agent's own logs of this turn."""
    env: Mapping[str, str] = field(default_factory=dict)
    plan: TurnPlan | None = None
    """The whole plan of the turn; the oracle reads its solution from here."""
    continues: bool = False
    """True: go on with the session of the turn before (spec 16)."""
    mcp_servers: tuple[McpServer, ...] = ()
    """The task's and the run's (spec 3.8); empty unless ``takes_mcp_servers``."""
    skills_dir: str | None = None
    """Folder in the sandbox with skills; ``None`` unless ``takes_skills``."""
    skills: tuple[Path, ...] = ()
    """Folders on the host with more of them."""
    network: NetworkMode = "public"
    """What the sandbox has."""


@runtime_checkable
class Agent(Protocol):
    """An agent.

    Optional, each sync or async: ``setup(sandbox)`` before the first turn of a try,
    ``end_session(sandbox)`` when a session closes (after each turn's work, or once under
    ``--harbor-turn-sessions continue``, spec 16), ``close()`` after the episode. Optional and
    sync: ``needs(plan, environ) -> AgentNeeds`` before anything starts. Optional attributes:
    ``can_continue``, ``takes_mcp_servers`` and ``takes_skills`` (default: False), and
    ``slack_seconds``, what it may take beyond a turn's budget to say how it ended.
    """

    name: str

    def run(
        self, turn: AgentTurn
    ) -> Awaitable[AgentResult | None] | AgentResult | None:
        """Work on one turn. Raises AgentError for a failure of its own."""
