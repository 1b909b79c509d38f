"""The way from pytest's main thread into one event loop per process, and back."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    suppress,
)
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

T = TypeVar("T")

WAKE_UP_SECONDS: Final = 0.5

CLEAN_UP_SECONDS: Final = 120.0
"""How long an interrupted call may clean up; what is left then is swept later."""


@dataclass(frozen=True)
class _Ended(Generic[T]):
    """How a call ended: what it gave back, or what it raised."""

    result: T | None = None
    error: BaseException | None = None

    def value(self) -> T:
        try:
            if self.error is not None:
                raise self.error
        except (SystemExit, GeneratorExit) as error:
            # pytest's fixtures are no better prepared for these than an event loop is:
            # those of the items after it break on what it leaves behind.
            what = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"{what} (in an agent, provider or fixture)") from error
        return cast("T", self.result)


class Bridge:
    """One event loop in a background thread, shared by everything of this process.

    The loop outlives each item, so sandboxes can be removed in the background and
    providers keep their connections.
    """

    def __init__(self) -> None:
        self._exit = ExitStack()
        self._portal: BlockingPortal = self._exit.enter_context(
            start_blocking_portal("asyncio")
        )

    def run(
        self,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        inbox: queue.SimpleQueue[Any] | None = None,
        receive: Callable[[Any], None] | None = None,
    ) -> T:
        """Run an async function to its end and give back what it returns.

        What the function puts into ``inbox`` is handed to ``receive`` here, in the
        calling thread, as it comes. When this thread is interrupted (Ctrl-C, a time limit raised
        by a signal, an exception of ``receive``), the call is cancelled, its clean-up is waited for, and
        the interruption goes on.
        """
        box: queue.SimpleQueue[Any] = (
            inbox if inbox is not None else queue.SimpleQueue()
        )
        ended = threading.Event()
        end = object()

        future = self._start(function, args, ended)
        future.add_done_callback(lambda _: box.put(end))
        try:
            while (thing := _next(box)) is not end:
                if receive is not None:
                    receive(thing)
            ended_call = future.result()
        except BaseException:
            if not ended.is_set():
                future.cancel()
                _wait_for_clean_up(ended)
            raise
        return ended_call.value()

    async def run_from_loop(
        self, function: Callable[..., Awaitable[T]], *args: Any
    ) -> T:
        """As :meth:`run`, awaited in another event loop (that of an async test)."""
        ended = threading.Event()

        future = self._start(function, args, ended)
        try:
            call = await anyio.to_thread.run_sync(future.result, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            future.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(ended.wait, CLEAN_UP_SECONDS)
            raise
        return call.value()

    def hold(
        self, manager: AbstractAsyncContextManager[T]
    ) -> AbstractContextManager[T]:
        """An async context manager that is entered and left in the loop, for this thread."""
        return self._portal.wrap_async_context_manager(manager)

    def _start(
        self,
        function: Callable[..., Awaitable[T]],
        args: tuple[Any, ...],
        ended: threading.Event,
    ) -> Future[_Ended[T]]:
        async def supervised() -> _Ended[T]:
            try:
                return _Ended(result=await function(*args))
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                # SystemExit and KeyboardInterrupt would end the loop of everybody.
                return _Ended(error=error)
            finally:
                ended.set()

        return self._portal.start_task_soon(supervised)

    def close(self) -> None:
        """End the loop. What still runs in it is cancelled."""
        # Left alone the portal would wait for it, however long that takes.
        with suppress(RuntimeError):
            self._portal.call(self._portal.stop, True)
        self._exit.close()


def _next(box: queue.SimpleQueue[Any]) -> Any:
    """Wait for the next thing, and never sleep through a signal.

    One that arrives between the interpreter's last look and the moment the thread falls
    asleep would be noticed only when the thread wakes up, so it wakes up now and then.
    """
    while True:
        try:
            return box.get(timeout=WAKE_UP_SECONDS)
        except queue.Empty:  # noqa: PERF203 - see above
            continue


def _wait_for_clean_up(ended: threading.Event) -> None:
    """Wait, and take further Ctrl-C as the impatience they are: removal goes on."""
    until = time.monotonic() + CLEAN_UP_SECONDS
    while not ended.is_set() and time.monotonic() < until:
        try:
            ended.wait(WAKE_UP_SECONDS)
        except KeyboardInterrupt:  # noqa: PERF203 - each one is met on its own
            sys.stderr.write("\nharbor: still removing sandboxes, one moment\n")
