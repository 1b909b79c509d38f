"""Agents that every run can deploy by their ID, without a folder in the bundle (spec 6)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pytest_harbor.agents import scripted
from pytest_harbor.graphs.agents import AgentSource, ServerAgent
from pytest_harbor.tasks.steps.entries import AgentEntry

SCRIPTED: Final = "scripted"


def built_in_agents() -> dict[str, AgentSource]:
    """``scripted``: plays the script in its variable ``SCRIPTED_AGENT`` (``env_vars``).

    It runs on the runner's own Python, so in the local sandbox. Command-line agents are
    another module's (``bridges.bridged_agents``).
    """
    entry = AgentEntry(
        name=SCRIPTED,
        folder=Path(scripted.__file__).parent,
        command=("python", "-m", scripted.__name__),
    )
    return {SCRIPTED: ServerAgent(entry)}
