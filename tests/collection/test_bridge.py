"""The event loop beside pytest's thread: what comes through, and how it is interrupted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import anyio
import pytest

from pytest_harbor.collection import bridge as bridges
from pytest_harbor.collection.bridge import Bridge


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    bridge = Bridge()
    yield bridge
    bridge.close()


def test_results_and_errors_come_through(bridge: Bridge) -> None:
    async def double(number: int) -> int:
        await anyio.lowlevel.checkpoint()
        return 2 * number

    async def fail() -> None:
        raise ValueError("no")

    assert bridge.run(double, 21) == 42
    with pytest.raises(ValueError, match="no"):
        bridge.run(fail)


@pytest.mark.parametrize(
    ("kind", "arrives"),
    [
        (SystemExit, RuntimeError),
        (GeneratorExit, RuntimeError),
        (KeyboardInterrupt, KeyboardInterrupt),
        (pytest.fail.Exception, pytest.fail.Exception),
    ],
)
def test_nothing_that_is_raised_ends_the_loop(
    bridge: Bridge, kind: type[BaseException], arrives: type[BaseException]
) -> None:
    """Else an agent's ``sys.exit()`` would break everything that comes after it."""

    async def leave() -> None:
        await anyio.lowlevel.checkpoint()
        raise kind("bye")

    async def answer() -> int:
        await anyio.lowlevel.checkpoint()
        return 42

    async def leave_elsewhere() -> None:
        await bridge.run_from_loop(leave)

    for _ in range(2):
        with pytest.raises(arrives, match="bye"):
            bridge.run(leave)
    with pytest.raises(arrives, match="bye"):
        anyio.run(leave_elsewhere)
    assert bridge.run(answer) == 42


def test_what_is_sent_arrives_in_order_in_the_calling_thread(bridge: Bridge) -> None:
    inbox: queue.SimpleQueue[int] = queue.SimpleQueue()
    got: list[tuple[int, threading.Thread]] = []

    async def count() -> str:
        for number in range(100):
            inbox.put(number)
        return "done"

    def receive(number: int) -> None:
        got.append((number, threading.current_thread()))

    assert bridge.run(count, inbox=inbox, receive=receive) == "done"
    assert got == [(number, threading.current_thread()) for number in range(100)]


def test_an_interrupt_cancels_and_waits_for_the_clean_up(bridge: Bridge) -> None:
    inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
    events: list[str] = []

    async def episode() -> None:
        inbox.put("started")
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(3):
                    await anyio.lowlevel.checkpoint()
                events.append("cleaned up")

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bridge.run(episode, inbox=inbox, receive=interrupt)
    assert events == ["cleaned up"]


def test_clean_up_that_never_ends_is_left_behind(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridges, "CLEAN_UP_SECONDS", 0.05)
    monkeypatch.setattr(bridges, "WAKE_UP_SECONDS", 0.01)
    release = threading.Event()
    inbox: queue.SimpleQueue[str] = queue.SimpleQueue()

    async def stubborn() -> None:
        inbox.put("started")
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(release.wait)

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bridge.run(stubborn, inbox=inbox, receive=interrupt)
    release.set()


def test_closing_cancels_what_an_interrupt_left_running() -> None:
    """One that comes before the wait began has nobody who would cancel the call."""
    bridge = Bridge()
    ended = threading.Event()
    started = threading.Event()

    async def episode() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    bridge._portal.start_task_soon(episode)
    assert started.wait(10)
    closing = threading.Thread(target=bridge.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    assert ended.is_set()


def test_awaited_from_another_loop(bridge: Bridge) -> None:
    cleaned = threading.Event()
    began = threading.Event()

    async def answer() -> int:
        return 42

    async def forever() -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.set()

    async def elsewhere() -> int:
        async with anyio.create_task_group() as group:
            group.start_soon(bridge.run_from_loop, forever)
            await anyio.to_thread.run_sync(began.wait)
            group.cancel_scope.cancel()
        return await bridge.run_from_loop(answer)

    assert anyio.run(elsewhere) == 42
    assert cleaned.is_set()
