"""Fixtures for tests that run whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal

from episode_runs import run_folder
from pytest_harbor.episodes.result import EpisodeResult
from pytest_harbor.sandboxes.api import Provider
from pytest_harbor.sandboxes.local.provider import LocalProvider
from scripted_sandbox import ScriptedProvider

RunEpisode = Callable[..., EpisodeResult]


@pytest.fixture
def scripted() -> ScriptedProvider:
    return ScriptedProvider()


@pytest.fixture
def run_scripted(scripted: ScriptedProvider, tmp_path: Path) -> RunEpisode:
    """Run one episode of a task folder on the scripted provider."""

    def run_it(folder: Path, agent: Any = "nop", **options: Any) -> EpisodeResult:
        options.setdefault("logs", tmp_path / "logs")
        return anyio.run(lambda: run_folder(scripted, folder, agent, **options))

    return run_it


@pytest.fixture(scope="module")
def local(portal: BlockingPortal) -> Iterator[LocalProvider]:
    provider = LocalProvider()
    capabilities = portal.call(provider.probe)
    if not capabilities.available:
        pytest.skip(capabilities.reason)
    yield provider
    portal.call(provider.aclose)


@pytest.fixture
def run_local(
    portal: BlockingPortal, local: LocalProvider, tmp_path: Path
) -> RunEpisode:
    """Run one episode of a task folder in a real local sandbox."""

    def run_it(folder: Path, agent: Any = "oracle", **options: Any) -> EpisodeResult:
        options.setdefault("logs", tmp_path / "logs")
        return portal.call(partial(run_folder, local, folder, agent, **options))

    return run_it


@pytest.fixture(scope="module")
def docker(portal: BlockingPortal, docker_problem: str | None) -> Iterator[Provider]:
    if docker_problem:
        pytest.skip(docker_problem)
    from pytest_harbor.sandboxes.docker.provider import DockerProvider

    provider = DockerProvider()
    yield provider
    portal.call(provider.aclose)


@pytest.fixture
def run_docker(portal: BlockingPortal, docker: Provider, tmp_path: Path) -> RunEpisode:
    """Run one episode of a task folder in real containers."""

    def run_it(folder: Path, agent: Any = "oracle", **options: Any) -> EpisodeResult:
        options.setdefault("logs", tmp_path / "logs")
        return portal.call(partial(run_folder, docker, folder, agent, **options))

    return run_it


@pytest.fixture
def toml(docker_image: str) -> str:
    return f'[environment]\ndocker_image = "{docker_image}"\nworkdir = "/app"\n'
