from __future__ import annotations

import os
from collections.abc import Iterator

import anyio
import httpcore  # noqa: F401 - httpx remembers its errors, and loads it on first use
import httpcore2  # noqa: F401
import pytest
from lent_sandboxes import LendingProviders
from scratch_project import Project

from private_daemon import DOCKERD, Daemon, private_daemon

# pytester forgets what a run in this process imported; loaded here, the heavy
# modules are loaded once for all tests.
from pytest_harbor.agents.command import agent  # noqa: F401
from pytest_harbor.collection import (  # noqa: F401
    bridge,
    folders,
    interrupts,
    providers,
    running,
    step_files,
    step_handles,
    step_running,
    step_tests,
    terminal,
)
from pytest_harbor.episodes import episode, outcome  # noqa: F401
from pytest_harbor.graphs import run  # noqa: F401
from pytest_harbor.graphs.steps import registry  # noqa: F401
from pytest_harbor.results import step_text  # noqa: F401
from pytest_harbor.sandboxes.local.provider import LocalProvider
from pytest_harbor.tasks.folder import load, plan  # noqa: F401
from pytest_harbor.tasks.steps import load as load_steps  # noqa: F401


@pytest.fixture(scope="session")
def lender() -> Iterator[LocalProvider]:
    """Holds the broker and the userland of all runs in this process."""
    provider = LocalProvider()
    yield provider
    anyio.run(provider.aclose)


@pytest.fixture(autouse=True)
def _lent_sandboxes(lender: LocalProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LendingProviders, "lender", lender, raising=False)
    monkeypatch.setattr(providers, "Providers", LendingProviders)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A scratch project whose root is the rootdir, with real tasks in ``datasets/``."""
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    # At the end of a run hypothesis's plugin imports all of hypothesis, every time anew.
    # Every run with pytest-rerunfailures leaves a thread and a listening socket in this
    # process; tests that need it ask for it with ``project.reruns``.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:rerunfailures")
    return Project(pytester)


@pytest.fixture(scope="module")
def daemon(docker_image: str) -> Iterator[Daemon]:
    """A Docker daemon of the module's own, with the image of the tests."""
    if DOCKERD is None or os.geteuid() != 0:
        pytest.skip("a private daemon needs root and dockerd")
    with private_daemon() as daemon:
        daemon.load(docker_image)
        yield daemon
