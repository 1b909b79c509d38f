"""Calls that may take minutes: they can be cancelled, and they tell how far they are."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import docker
import requests

from pytest_harbor.sandboxes.api import Tell
from pytest_harbor.sandboxes.docker.client import Engine, daemon_errors

T = TypeVar("T")

TELL_SECONDS = 5.0
"""Between two lines of progress: enough to see that it goes on, few enough for a log."""


async def interruptible(engine: Engine, work: Callable[[docker.APIClient], T]) -> T:
    """Run something long in a thread that ends when the caller is cancelled.

    Raises:
        DaemonError: the daemon refused, or is gone.
    """
    client = engine.long_client(_TrackingClient)

    def in_thread() -> T:
        try:
            with daemon_errors():
                return work(client)
        finally:
            client.close()

    try:
        return await anyio.to_thread.run_sync(in_thread, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        client.hang_up()
        raise


async def telling(
    tell: Tell | None, line: Callable[[], str], work: Callable[[], Awaitable[T]]
) -> T:
    """Await ``work``, telling ``line()`` at once and then every few seconds."""
    if tell is None:
        return await work()
    result: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_tell_on, tell, line)
        try:
            result.append(await work())
        except Exception as error:  # noqa: BLE001 - raised below: the group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result[0]


async def _tell_on(tell: Tell, line: Callable[[], str]) -> None:
    told = ""
    while True:
        # What did not move is not worth a line.
        if (now := line()) != told:
            tell(now)
            told = now
        await anyio.sleep(TELL_SECONDS)


class _TrackingClient(docker.APIClient):
    """Remembers its last response, so that another thread can hang up."""

    response: requests.Response | None = None

    def send(self, request: Any, **options: Any) -> requests.Response:
        self.response = super().send(request, **options)
        return self.response

    def hang_up(self) -> None:
        """Make a read that goes on in another thread end; the daemon then stops too."""
        if self.response is not None:
            # AttributeError: urllib3 before 2.3, where the thread ends with the build.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                self.response.raw.shutdown()
