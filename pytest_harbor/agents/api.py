"""The seam between the episode engine and agents (design 5.3)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pytest_harbor.sandboxes.api import Sandbox, User
from pytest_harbor.tasks.folder.plan_types import TurnPlan


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


@runtime_checkable
class Agent(Protocol):
    """An agent. ``setup(sandbox)`` and ``close()`` are optional, sync or async."""

    name: str

    def run(
        self, turn: AgentTurn
    ) -> Awaitable[AgentResult | None] | AgentResult | None:
        """Work on one turn. Raises AgentError for a failure of its own."""
