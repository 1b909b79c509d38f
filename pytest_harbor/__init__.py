"""pytest-harbor: agent-evaluation tasks as pytest tests.

Names of the public API resolve on first use, so that ``import pytest_harbor`` (which every
pytest session of its users does) loads nothing but the standard library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_harbor.agents.api import (
        Agent,
        AgentNeeds,
        AgentResult,
        AgentTurn,
        McpServer,
    )
    from pytest_harbor.agents.command.declaration import (
        AgentDeclaration,
        CommandRun,
        PlacedFile,
    )
    from pytest_harbor.collection.warnings import PytestHarborWarning
    from pytest_harbor.episodes.episode import run as run_episode
    from pytest_harbor.episodes.result import EpisodeResult, TurnResult
    from pytest_harbor.errors import AgentError, HarborError
    from pytest_harbor.events import Event
    from pytest_harbor.sandboxes.api import ExecResult, Provider, Sandbox
    from pytest_harbor.sandboxes.environment import EnvironmentSpec
    from pytest_harbor.sandboxes.install_script import InstallScript
    from pytest_harbor.settings import Settings
    from pytest_harbor.tasks.folder.load import load_task
    from pytest_harbor.tasks.folder.plan import plan_episode
    from pytest_harbor.tasks.folder.plan_types import EpisodePlan, TurnPlan
    from pytest_harbor.tasks.folder.task import Task

__version__ = "0.1.0"

_HOMES = {
    "Agent": "agents.api",
    "AgentDeclaration": "agents.command.declaration",
    "AgentError": "errors",
    "AgentNeeds": "agents.api",
    "AgentResult": "agents.api",
    "AgentTurn": "agents.api",
    "CommandRun": "agents.command.declaration",
    "EnvironmentSpec": "sandboxes.environment",
    "EpisodePlan": "tasks.folder.plan_types",
    "EpisodeResult": "episodes.result",
    "Event": "events",
    "ExecResult": "sandboxes.api",
    "HarborError": "errors",
    "InstallScript": "sandboxes.install_script",
    "McpServer": "agents.api",
    "PlacedFile": "agents.command.declaration",
    "Provider": "sandboxes.api",
    "PytestHarborWarning": "collection.warnings",
    "Sandbox": "sandboxes.api",
    "Settings": "settings",
    "Task": "tasks.folder.task",
    "TurnPlan": "tasks.folder.plan_types",
    "TurnResult": "episodes.result",
    "load_task": "tasks.folder.load",
    "plan_episode": "tasks.folder.plan",
    "run_episode": "episodes.episode",
}
_RENAMED = {"run_episode": "run"}

__all__ = [
    "Agent",
    "AgentDeclaration",
    "AgentError",
    "AgentNeeds",
    "AgentResult",
    "AgentTurn",
    "CommandRun",
    "EnvironmentSpec",
    "EpisodePlan",
    "EpisodeResult",
    "Event",
    "ExecResult",
    "HarborError",
    "InstallScript",
    "McpServer",
    "PlacedFile",
    "Provider",
    "PytestHarborWarning",
    "Sandbox",
    "Settings",
    "Task",
    "TurnPlan",
    "TurnResult",
    "load_task",
    "plan_episode",
    "run_episode",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), _RENAMED.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
