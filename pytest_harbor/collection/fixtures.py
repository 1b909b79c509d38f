"""Fixtures: settings -> provider and agent -> sandbox and episode.

``harbor_settings``, ``harbor_provider`` and ``harbor_agent`` are links to override in a
``conftest.py``; collected tasks below it use them as tests do. Nothing here is autouse.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from pytest_harbor.collection import session as sessions

if TYPE_CHECKING:
    from pytest_harbor.agents.api import Agent
    from pytest_harbor.collection.handles import AwaitableSandbox
    from pytest_harbor.collection.providers import Choice
    from pytest_harbor.collection.running import Request
    from pytest_harbor.episodes.result import EpisodeResult
    from pytest_harbor.sandboxes.sync import SyncSandbox
    from pytest_harbor.settings import Settings
    from pytest_harbor.tasks.folder.task import Task

Handle: TypeAlias = "SyncSandbox | AwaitableSandbox"


@pytest.fixture(scope="session")
def harbor_settings(pytestconfig: pytest.Config) -> Settings:
    """Settings of the run, from options and ini keys.

    Override it with ``return harbor_settings.with_changes(min_reward=0.5)``. Agents,
    attempts, ``validate`` and ``strict`` shape the collection, which is over by then.
    """
    return sessions.of(pytestconfig).settings


@pytest.fixture(scope="session")
def harbor_provider(harbor_settings: Settings) -> Choice:
    """Where sandboxes come from: ``auto``, a provider's name, or a ``Provider``."""
    return harbor_settings.sandbox


@pytest.fixture
def harbor_agent(request: pytest.FixtureRequest, harbor_settings: Settings) -> Agent:
    """The agent of this test: that of its marker, else the one of ``--harbor-agent``.

    Override it with anything that has a ``name`` and ``run(turn)``.
    """
    from pytest_harbor.collection import markers

    with plain_errors(harbor_settings):
        name = markers.read(request.node).agent
        name = name or getattr(request, "param", None) or harbor_settings.agents[0]
        return sessions.of(request.config).make_agent(name, harbor_settings.model)


@pytest.fixture
def _harbor_attempt(request: pytest.FixtureRequest) -> int:
    """Number of the attempt, from 1: one item each with ``--harbor-attempts``."""
    return getattr(request, "param", 1)


@pytest.fixture
def harbor_task(request: pytest.FixtureRequest) -> Task:
    """The task of this item, or the one that the ``harbor`` marker names."""
    from pytest_harbor.collection import markers
    from pytest_harbor.collection.folders import TaskModule
    from pytest_harbor.collection.loading import load
    from pytest_harbor.errors import SettingsError

    module = request.node.getparent(TaskModule)
    if module is not None:
        task: Task = module.task
        return task
    with plain_errors(sessions.of(request.config).settings):
        path = markers.read(request.node).path
        if path is None:
            raise SettingsError(
                "no task: mark the test with @pytest.mark.harbor('path/of/the/task')"
            )
        return load(request.config, markers.find_task(path, request.node))


@pytest.fixture
def harbor_episode(
    request: pytest.FixtureRequest,
    harbor_task: Task,
    harbor_settings: Settings,
    harbor_provider: Choice,
    harbor_agent: Agent,
    _harbor_attempt: int,
) -> EpisodeResult:
    """Run the episode and give its result, graded; anything else is an error."""
    from pytest_harbor.collection.running import Request, run

    with plain_errors(harbor_settings):
        return run(
            Request(
                item=request.node,
                task=harbor_task,
                settings=harbor_settings,
                provider=harbor_provider,
                agent=_as_agent(request, harbor_agent, harbor_settings),
                attempt=_harbor_attempt,
            )
        )


@pytest.fixture
def harbor_sandbox_factory(
    request: pytest.FixtureRequest,
    harbor_settings: Settings,
    harbor_provider: Choice,
) -> Iterator[Callable[..., Any]]:
    """A function that starts the sandbox of a task; ended with the test.

    ``factory("datasets/my-task")``, or ``factory()`` for the task of the marker; in an async
    test it is awaited.
    """
    from pytest_harbor.collection.handles import SandboxFactory, is_async_test

    session = sessions.of(request.config)
    is_async = is_async_test(request)
    factory = SandboxFactory(session, is_async=is_async)

    def start(path: str | None = None) -> Handle | Awaitable[Handle]:
        asked = _sandbox_request(request, harbor_settings, harbor_provider, path)
        session.interrupts.arm()
        if is_async:
            return factory.start_from_loop(asked)
        return factory.start(asked)

    yield start
    factory.stop()


@pytest.fixture
def harbor_sandbox(
    request: pytest.FixtureRequest,
    harbor_task: Task,
    harbor_settings: Settings,
    harbor_provider: Choice,
) -> Iterator[Handle]:
    """A started sandbox of the test's task; no agent and no verifier run in it."""
    from pytest_harbor.collection.handles import SandboxFactory, is_async_test

    session = sessions.of(request.config)
    factory = SandboxFactory(session, is_async=is_async_test(request))
    session.interrupts.arm()
    with plain_errors(harbor_settings):
        handle = factory.start(
            _request_without_agent(
                request, harbor_task, harbor_settings, harbor_provider
            )
        )
    yield handle
    factory.stop()


def _sandbox_request(
    request: pytest.FixtureRequest,
    settings: Settings,
    provider: Choice,
    path: str | None,
) -> Request:
    from pytest_harbor.collection import markers
    from pytest_harbor.collection.loading import load

    with plain_errors(settings):
        if path is None:
            task = request.getfixturevalue("harbor_task")
        else:
            task = load(request.config, markers.find_task(path, request.node))
    return _request_without_agent(request, task, settings, provider)


def _request_without_agent(
    request: pytest.FixtureRequest, task: Task, settings: Settings, provider: Choice
) -> Request:
    from pytest_harbor.collection.running import Request

    agent = sessions.of(request.config).make_agent("nop", None)
    return Request(request.node, task, settings, provider, agent, attempt=1)


def _as_agent(request: pytest.FixtureRequest, value: Any, settings: Settings) -> Agent:
    """An overriding fixture may give a name, a declaration, a class or an object."""
    from pytest_harbor.agents.registry import as_agent

    if isinstance(value, str):
        return sessions.of(request.config).make_agent(value, settings.model)
    return as_agent("harbor_agent", value, model=settings.model)


@contextmanager
def plain_errors(settings: Settings) -> Iterator[None]:
    """Turn errors of ours into a failure that shows no frames, unless asked to."""
    from pytest_harbor.errors import HarborError

    try:
        yield
    except HarborError as error:
        if settings.debug:
            raise
        text = error.message
    else:
        return
    from pytest_harbor.results.junit import clean

    # "from None": a with statement still counts the first error as being handled.
    raise pytest.fail.Exception(clean(text), pytrace=False) from None
