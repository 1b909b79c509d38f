"""Agents for tests of several turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_harbor.agents.api import AgentResult, AgentTurn
from pytest_harbor.sandboxes.api import ExecResult


class PerStep:
    """Runs one shell command per step, and keeps what each turn gave and said.

    ``transcript``: whether each turn has one, which names its step.
    """

    name = "per-step"

    def __init__(
        self, commands: Mapping[str, str] = {}, *, transcript: bool = False
    ) -> None:
        self.commands = commands
        self.transcript = transcript
        self.turns: list[AgentTurn] = []
        self.results: dict[str, ExecResult] = {}

    async def run(self, turn: AgentTurn) -> AgentResult:
        self.turns.append(turn)
        command = self.commands.get(turn.step)
        if command is not None:
            self.results[turn.step] = await turn.sandbox.exec(command)
        trajectory: dict[str, Any] = {"step": turn.step}
        return AgentResult(
            text=f"done {turn.step}",
            trajectory=trajectory if self.transcript else None,
        )

    def said(self, step: str) -> list[str]:
        """The lines that a step's command printed."""
        return self.results[step].output.splitlines()
