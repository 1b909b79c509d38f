"""Fixtures for tests that run step tasks on the local sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal

from graph_runs import Library
from pytest_harbor.graphs.result import StepRunResult
from pytest_harbor.sandboxes.local.provider import LocalProvider
from servers.running import Servers, many_servers

RunSteps = Callable[..., StepRunResult]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Agents, models and others on sockets, for as long as the module's tests."""
    with many_servers() as running:
        yield running


@pytest.fixture(scope="module")
def local(portal: BlockingPortal) -> Iterator[LocalProvider]:
    provider = LocalProvider()
    capabilities = portal.call(provider.probe)
    if not capabilities.available:
        pytest.skip(capabilities.reason)
    yield provider
    assert [box.id for box in provider._sandboxes if not box.is_stopped] == []
    portal.call(provider.aclose)


@pytest.fixture
def library(local: LocalProvider, tmp_path: Path) -> Library:
    """The library's bundle, with a plain env and a plain agent."""
    library = Library(tmp_path, {"local": local})
    library.env()
    library.agent()
    return library


@pytest.fixture
def run_steps(portal: BlockingPortal, library: Library) -> RunSteps:
    """Run steps of the library's bundle on the local sandbox."""

    def run_it(*steps: Any, **options: Any) -> StepRunResult:
        return portal.call(partial(library.run, *steps, **options))

    return run_it
