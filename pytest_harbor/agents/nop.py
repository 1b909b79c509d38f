"""The agent that does nothing: a sound task must not reward it."""

from __future__ import annotations

from pytest_harbor.agents.api import AgentResult, AgentTurn


class NopAgent:
    """Does nothing, in every turn."""

    name = "nop"

    async def run(self, turn: AgentTurn) -> AgentResult:
        """End the turn at once."""
        del turn
        return AgentResult()
