"""Sandboxes for tests: blocking in plain ones, awaitable in async ones."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_harbor.collection import session as sessions

if TYPE_CHECKING:
    from pytest_harbor.collection.running import Request
    from pytest_harbor.sandboxes.api import Provider, Sandbox
    from pytest_harbor.sandboxes.sync import SyncSandbox
    from pytest_harbor.tasks.folder.plan_types import EpisodePlan


class AwaitableSandbox:
    """A sandbox of the session's event loop, for a test that has a loop of its own.

    Async methods are awaited as those of ``pytest_harbor.Sandbox``, with any anyio
    backend; everything else is passed on.
    """

    def __init__(self, sandbox: Sandbox, session: sessions.HarborSession) -> None:
        self._sandbox = sandbox
        self._session = session

    @property
    def services(self) -> Mapping[str, AwaitableSandbox]:
        """The other services of its Compose file by name, each as this one."""
        return {
            name: AwaitableSandbox(service, self._session)
            for name, service in self._sandbox.services.items()
        }

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._sandbox, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            function = partial(found, *args, **kwargs)
            return await self._session.bridge.run_from_loop(function)

        return call


class SandboxFactory:
    """Starts sandboxes for one test, and ends them with it."""

    def __init__(self, session: sessions.HarborSession, *, is_async: bool) -> None:
        self._session = session
        self._is_async = is_async
        self._up: list[Sandbox] = []

    def start(self, request: Request) -> SyncSandbox | AwaitableSandbox:
        """Start the sandbox of a task, as an episode of it would have one.

        Raises:
            HarborError: the task is refused, or the sandbox does not start.
        """
        sandbox = self._session.bridge.run(self._start, *self._choose(request))
        return self._handle(sandbox)

    async def start_from_loop(self, request: Request) -> AwaitableSandbox:
        """As :meth:`start`, awaited."""
        chosen = self._choose(request)
        sandbox = await self._session.bridge.run_from_loop(self._start, *chosen)
        return AwaitableSandbox(sandbox, self._session)

    def stop(self) -> None:
        """End all of them."""
        while self._up:
            self._session.bridge.run(self._up.pop().stop)

    def _choose(self, request: Request) -> tuple[EpisodePlan, Provider]:
        """Outside the loop: a provider sweeps on first use, which waits for the loop."""
        from pytest_harbor.collection.running import make_plan

        plan = make_plan(request)
        provider = self._session.providers.choose(
            request.provider, needs_container=plan.environment.needs_container
        )
        return plan, provider

    async def _start(self, plan: EpisodePlan, provider: Provider) -> Sandbox:
        from pytest_harbor.episodes.seed import check_provider, make_seed
        from pytest_harbor.errors import SandboxUnavailable
        from pytest_harbor.sandboxes.api import TASK_LABEL

        capabilities = await provider.probe()
        if not capabilities.available:
            raise SandboxUnavailable(capabilities.reason)
        seed = make_seed(plan, os.environ)
        check_provider(provider, plan, seed)
        sandbox = await provider.start(
            seed.environment,
            name=f"{plan.task_id}-{os.getpid()}-{len(self._up)}",
            labels={TASK_LABEL: plan.task_id},
        )
        self._up.append(sandbox)
        return sandbox

    def _handle(self, sandbox: Sandbox) -> SyncSandbox | AwaitableSandbox:
        from pytest_harbor.sandboxes.sync import SyncSandbox

        if self._is_async:
            return AwaitableSandbox(sandbox, self._session)
        return SyncSandbox(sandbox, self._session.bridge.run)


def is_async_test(request: pytest.FixtureRequest) -> bool:
    """True when the test function is a coroutine function."""
    function: Callable[..., Any] | None = getattr(request, "function", None)
    return function is not None and inspect.iscoroutinefunction(function)
