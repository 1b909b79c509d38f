"""When steps start, and what a failure does to the others (spec 2.1, 2.2).

The scheduler knows nothing of what steps do. :class:`Progress` takes the decisions and is
pure; :func:`run_graph` carries them out in one event loop.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup

from pytest_harbor.errors import StepError


@dataclass(frozen=True)
class Retry:
    """``retry_config``: after a failure begin again at ``from_step``, so many times."""

    from_step: str
    max_retries: int = 1


@dataclass(frozen=True)
class Node:
    """What the scheduler knows of a step."""

    id: str
    depends_on: tuple[str, ...] = ()
    """Earlier steps; each must have ended before this one starts."""
    fails_task: bool = True
    """``fail_task_on_error``."""
    retry: Retry | None = None


Status: TypeAlias = Literal[
    "passed",
    "failed",  # fatal: nothing further starts
    "tolerated",  # failed, and the task goes on
    "retried",  # failed, and the span runs again
    "cancelled",  # stopped for a retry of another step, or with the whole run
]


@dataclass(frozen=True)
class Ending:
    """How one execution of a step ended. Times in seconds."""

    step_id: str
    status: Status
    error: BaseException | None
    started_at: float
    """Since the epoch."""
    seconds: float


@dataclass(frozen=True)
class Schedule:
    """What became of a graph."""

    statuses: Mapping[str, Status]
    """Of each step that was started, the last one; in file order."""
    not_run: tuple[str, ...]
    error: BaseException | None
    """The first fatal one."""


class Work(Protocol):
    """What the scheduler drives."""

    async def run(self, step_id: str) -> None:
        """Do the step's work. Any exception is its failure."""

    async def undo(self, step_ids: frozenset[str]) -> None:
        """Take back all that these steps did; they will run again. Must not raise."""

    def ended(self, ending: Ending) -> None:
        """Hear of a step's end, before anything that follows from it."""


@dataclass(frozen=True)
class _Finish:
    """A step's own end, before anybody judged it."""

    step_id: str
    error: BaseException | None
    was_cancelled: bool
    started_at: float
    seconds: float

    def ending(self, status: Status) -> Ending:
        return Ending(self.step_id, status, self.error, self.started_at, self.seconds)


@dataclass(frozen=True)
class Verdict:
    """What follows from steps that ended in one instant."""

    statuses: Mapping[str, Status]
    begin_again: Retry | None = None


class Progress:
    """Where a graph stands. Decides; starts, stops and waits for nothing."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.id: node for node in nodes}
        self._states: dict[str, Status | Literal["running"]] = {}
        self._retries: dict[str, int] = {}
        self._is_stopped = False

    @property
    def running(self) -> frozenset[str]:
        """The steps that run now."""
        return frozenset(
            step for step, state in self._states.items() if state == "running"
        )

    @property
    def statuses(self) -> dict[str, Status]:
        """The last end of each started step, in file order."""
        return {
            step: state
            for step in self._nodes
            if (state := self._states.get(step)) is not None and state != "running"
        }

    @property
    def not_run(self) -> tuple[str, ...]:
        """The steps that have not been started, in file order."""
        return tuple(step for step in self._nodes if step not in self._states)

    def ready(self, max_concurrent: int | None = None) -> list[str]:
        """The steps that may start now, in file order."""
        if self._is_stopped:
            return []
        ready = [
            node.id
            for node in self._nodes.values()
            if node.id not in self._states
            and all(
                self._states.get(step) in ("passed", "tolerated")
                for step in node.depends_on
            )
        ]
        if max_concurrent is not None:
            ready = ready[: max(0, max_concurrent - len(self.running))]
        return ready

    def start(self, step_id: str) -> None:
        """Note that a step has started."""
        self._states[step_id] = "running"

    def settle(self, failed: Mapping[str, bool]) -> Verdict:
        """Judge steps that ended in one instant; the value tells whether each failed.

        A retry is used before tolerance is. Two failures that both could be retried are
        fatal, and after a fatal failure nothing starts, so nothing is retried.
        """
        nodes = [self._nodes[step] for step, is_failure in failed.items() if is_failure]
        retryable = [node for node in nodes if self._has_retries_left(node)]
        is_fatal = {node.id: node.fails_task for node in nodes if node not in retryable}
        self._is_stopped |= any(is_fatal.values())
        if self._is_stopped:
            is_fatal |= {node.id: node.fails_task for node in retryable}
        elif len(retryable) > 1:
            is_fatal |= dict.fromkeys((node.id for node in retryable), True)
            self._is_stopped = True
        again = retryable[0] if retryable and not self._is_stopped else None
        statuses: dict[str, Status] = {}
        for step, is_failure in failed.items():
            if not is_failure:
                statuses[step] = "passed"
            elif again is not None and step == again.id:
                statuses[step] = "retried"
            else:
                statuses[step] = "failed" if is_fatal[step] else "tolerated"
        self._states.update(statuses)
        if again is None:
            return Verdict(statuses)
        self._retries[again.id] = self._retries.get(again.id, 0) + 1
        return Verdict(statuses, again.retry)

    def span(self, first: str) -> frozenset[str]:
        """The started steps that a retry from ``first`` runs again: it, and what hangs on it."""
        span = {first}
        for node in self._nodes.values():  # in file order: dependencies come first
            if span.intersection(node.depends_on):
                span.add(node.id)
        return frozenset(span.intersection(self._states))

    def reset(self, step_ids: Iterable[str]) -> None:
        """Forget that these steps were ever started."""
        for step in step_ids:
            self._states.pop(step, None)

    def stopped(self, step_id: str, *, passed: bool) -> None:
        """Note that a running step was told to stop; it may have been done by then."""
        self._states[step_id] = "passed" if passed else "cancelled"

    def _has_retries_left(self, node: Node) -> bool:
        if node.retry is None:
            return False
        return self._retries.get(node.id, 0) < node.retry.max_retries


async def run_graph(
    nodes: Sequence[Node], work: Work, *, max_concurrent: int | None = None
) -> Schedule:
    """Run steps to their end: each as soon as its dependencies have ended.

    ``nodes`` are in file order, which is also the order of starting. When this is
    cancelled, running steps are cancelled, waited for and reported, then the
    cancellation goes on.
    """
    driver = _Driver(Progress(nodes), work, max_concurrent)
    problem: Exception | None = None
    try:
        async with anyio.create_task_group() as group:
            try:
                await driver.drive(group)
            except Exception as error:  # noqa: BLE001 - raised below, not in a group
                problem = error
                group.cancel_scope.cancel()
    finally:
        driver.report_cancelled()
    if problem is not None:
        raise problem
    return Schedule(
        driver.progress.statuses, driver.progress.not_run, driver.first_error
    )


class _Driver:
    """Carries out what :class:`Progress` decides."""

    def __init__(
        self, progress: Progress, work: Work, max_concurrent: int | None
    ) -> None:
        self.progress = progress
        self.first_error: BaseException | None = None
        self._work = work
        self._max_concurrent = max_concurrent
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._finished: deque[_Finish] = deque()
        self._wake = anyio.Event()

    async def drive(self, group: TaskGroup) -> None:
        while True:
            for step in self.progress.ready(self._max_concurrent):
                self._start(group, step)
            if not self.progress.running:
                return
            await self._settle(await self._next_batch())

    def _start(self, group: TaskGroup, step_id: str) -> None:
        self.progress.start(step_id)
        self._scopes[step_id] = anyio.CancelScope()
        group.start_soon(self._run, step_id, name=f"step {step_id}")

    async def _run(self, step_id: str) -> None:
        started_at, started = time.time(), anyio.current_time()
        error: BaseException | None = None
        is_done = False
        scope = self._scopes[step_id]
        try:
            with scope:
                await self._work.run(step_id)
                is_done = True
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - it is the step's failure
            error = problem
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise
            # Let out of the step, it would cancel all the others.
            error = StepError("the step was cancelled by something inside it")
        finally:
            was_cancelled = error is None and not is_done
            seconds = anyio.current_time() - started
            self._finished.append(
                _Finish(step_id, error, was_cancelled, started_at, seconds)
            )
            self._wake.set()

    async def _next_batch(self) -> list[_Finish]:
        """Wait for an end, and take all there are: those of one instant."""
        if not self._finished:
            self._wake = anyio.Event()
            await self._wake.wait()
        batch = list(self._finished)
        self._finished.clear()
        return batch

    async def _settle(self, batch: Sequence[_Finish]) -> None:
        verdict = self.progress.settle(
            {finish.step_id: finish.error is not None for finish in batch}
        )
        for finish in batch:
            status = verdict.statuses[finish.step_id]
            if status == "failed" and self.first_error is None:
                self.first_error = finish.error
            self._work.ended(finish.ending(status))
        if verdict.begin_again is not None:
            await self._begin_again(verdict.begin_again.from_step)

    async def _begin_again(self, first: str) -> None:
        stopped = set()
        for step in self.progress.running:
            self._scopes[step].cancel()
        while self.progress.running:
            for finish in await self._next_batch():
                if not self._note_stopped(finish):
                    stopped.add(finish.step_id)
        again = self.progress.span(first) | stopped
        await self._work.undo(again)
        self.progress.reset(again)

    def _note_stopped(self, finish: _Finish) -> bool:
        """Note the end of a step that was told to stop; true when it was done by then."""
        is_done = finish.error is None and not finish.was_cancelled
        self.progress.stopped(finish.step_id, passed=is_done)
        self._work.ended(finish.ending("passed" if is_done else "cancelled"))
        return is_done

    def report_cancelled(self) -> None:
        """Report the steps that ended while the whole run was being cancelled."""
        while self._finished:
            self._note_stopped(self._finished.popleft())
