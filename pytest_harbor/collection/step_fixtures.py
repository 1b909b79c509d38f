"""Fixtures for step tasks: runs, deployed envs and agents, judges, the object store.

They need no task file: a Python test deploys an env and an agent, prompts it and
asserts on the state. Nothing here is autouse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.fixtures import plain_errors

if TYPE_CHECKING:
    from pytest_harbor.collection.providers import Choice
    from pytest_harbor.collection.step_handles import EnvHandle, StepRunHandle
    from pytest_harbor.graphs.context import PromptResponse
    from pytest_harbor.graphs.objects import ObjectStore
    from pytest_harbor.settings import Settings

# Whoever reads a failure of a test wants the line of the test.
__tracebackhide__ = True


@pytest.fixture(scope="session")
def harbor_object_store(
    pytestconfig: pytest.Config, harbor_settings: Settings
) -> ObjectStore:
    """Where trajectories and collected files are kept.

    That is the run folder, or what ``--harbor-object-store`` says. Override it with an
    ``ObjectStore`` of your own.
    """
    from pytest_harbor.graphs.objects import open_store

    session = sessions.of(pytestconfig)
    with plain_errors(harbor_settings):
        return open_store(
            harbor_settings.object_store, session.run_folder.path / "objects"
        )


@pytest.fixture
def harbor_run(
    request: pytest.FixtureRequest,
    harbor_settings: Settings,
    harbor_provider: Choice,
    harbor_object_store: ObjectStore,
    _harbor_attempt: int,
) -> Iterator[StepRunHandle]:
    """The run of this item's task file, or of the one that the ``harbor`` marker names.

    Without either it is a run of its own for this test, in the bundle that the marker
    names or that the test lies in; ``deployed_env`` and the others act in it, and it
    is torn down with the test.
    """
    from pytest_harbor.collection.step_tests import run_of_test

    with plain_errors(harbor_settings):
        run = run_of_test(
            request,
            harbor_settings,
            harbor_provider,
            harbor_object_store,
            attempt=_harbor_attempt,
        )
    with run as handle:
        yield handle


@pytest.fixture
def deployed_env(
    request: pytest.FixtureRequest, harbor_run: StepRunHandle
) -> Callable[..., Any]:
    """Deploy an env: ``deployed_env("mail", artifact="inbox")``.

    Further keywords are fields of ``deploy_env``. The handle has ``call_tool(name, ...)``,
    ``state()``, ``load(artifact)`` and ``mcp_url``; in an async test all are awaited.
    """
    from pytest_harbor.collection.step_handles import deploy_env
    from pytest_harbor.collection.step_tests import caller

    call = caller(request)

    def deploy(env_id: str, *, artifact: str | None = None, **fields: Any) -> Any:
        return call(partial(deploy_env, **fields), harbor_run, call, env_id, artifact)

    return deploy


@pytest.fixture
def deployed_agent(
    request: pytest.FixtureRequest, harbor_run: StepRunHandle
) -> Callable[..., Any]:
    """Deploy an agent: ``deployed_agent("assistant", envs=[mail])``.

    Further keywords are fields of ``deploy_agent``. The handle has ``prompt(text)``,
    ``collect(*paths)`` and ``load(artifact)``; in an async test all are awaited.
    """
    from pytest_harbor.collection.step_handles import deploy_agent
    from pytest_harbor.collection.step_tests import caller

    call = caller(request)

    def deploy(
        agent_id: str | None = None,
        *,
        name: str | None = None,
        envs: Sequence[EnvHandle | str] = (),
        **fields: Any,
    ) -> Any:
        function = partial(deploy_agent, **fields)
        return call(function, harbor_run, call, agent_id, name, envs)

    return deploy


@pytest.fixture
def harbor_judge(
    request: pytest.FixtureRequest, harbor_run: StepRunHandle
) -> Callable[..., Any]:
    """Grade a reply: ``harbor_judge(reply, ["It names a date."]).score``.

    A criterion is a text, or a mapping as in a task file. Further keywords are fields of
    ``rubrics_verifier``. In an async test it is awaited.
    """
    from pytest_harbor.collection.step_handles import grade
    from pytest_harbor.collection.step_tests import caller

    call = caller(request)

    def judge(
        reply: PromptResponse | str,
        criteria: Sequence[str | Mapping[str, Any]],
        **fields: Any,
    ) -> Any:
        return call(partial(grade, **fields), harbor_run, reply, criteria)

    return judge
