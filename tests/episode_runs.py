"""Runs one episode of a task folder, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_harbor.agents.registry import resolve_agent
from pytest_harbor.episodes.episode import run
from pytest_harbor.episodes.result import EpisodeResult
from pytest_harbor.sandboxes.api import Provider
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.load import load_task
from pytest_harbor.tasks.folder.plan import plan_episode


async def run_folder(
    provider: Provider,
    folder: Path,
    agent: Any,
    *,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> EpisodeResult:
    """Run one episode; ``agent`` is a name or an agent."""
    name = agent if isinstance(agent, str) else "mine"
    made = resolve_agent(agent, model=None) if isinstance(agent, str) else agent
    plan = plan_episode(load_task(folder), Settings(**(settings or {})), agent=name)
    return await run(plan, provider, made, **options)
