"""Fixtures for tests that run whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from scripted_sandbox import ScriptedProvider

from pytest_harbor.agents.registry import resolve_agent
from pytest_harbor.episodes.episode import run
from pytest_harbor.episodes.result import EpisodeResult
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.load import load_task
from pytest_harbor.tasks.folder.plan import plan_episode

RunEpisode = Callable[..., EpisodeResult]


@pytest.fixture
def scripted() -> ScriptedProvider:
    return ScriptedProvider()


@pytest.fixture
def run_scripted(scripted: ScriptedProvider, tmp_path: Path) -> RunEpisode:
    """Run one episode of a task folder on the scripted provider."""

    def run_it(
        folder: Path,
        agent: Any = "nop",
        *,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> EpisodeResult:
        name = agent if isinstance(agent, str) else "mine"
        made = resolve_agent(agent, model=None) if isinstance(agent, str) else agent
        plan = plan_episode(load_task(folder), Settings(**(settings or {})), agent=name)
        options.setdefault("logs", tmp_path / "logs")

        async def main() -> EpisodeResult:
            return await run(plan, scripted, made, **options)

        return anyio.run(main)

    return run_it
