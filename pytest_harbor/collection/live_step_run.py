"""Tell the steps of a running step task: each as it ends, and each exactly once.

A retry runs steps again that were told already. What was told is then taken back, and
told again without them; lines on the screen stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_harbor.collection import progress
from pytest_harbor.collection.judged import interruption
from pytest_harbor.collection.step_reports import (
    RETRACTED,
    STEP,
    emit,
    step_data,
)
from pytest_harbor.errors import CANCELLED

if TYPE_CHECKING:
    from pytest_harbor.events import Event
    from pytest_harbor.graphs.result import StepRunResult
    from pytest_harbor.verdicts import StepVerdict

_FINAL = frozenset({"passed", "failed", "tolerated"})


class LiveStepRun:
    """The steps of one running item; nothing is told for a Python test (``is_told``)."""

    def __init__(self, item: pytest.Item, *, is_told: bool) -> None:
        self._item = item
        self._is_told = is_told
        self._told: dict[str, dict[str, Any]] = {}
        self._positions: dict[str, int] = {}
        self._last: Mapping[str, Any] | None = None

    def see(self, event: Event) -> None:
        """Follow the run, and tell a step when it ended for good."""
        self.note(event)
        if event.kind == "run_started":
            steps: Any = event.data["steps"]
            self._positions = {step: index for index, step in enumerate(steps)}
        elif event.kind == "step_started" and event.step in self._told:
            self._take_back(event.step)
        elif event.kind == "step_ended" and event.data["status"] in _FINAL:
            self._tell_ended(event.data)
        progress.show(self._item, event, has_steps=self._is_told)

    def note(self, event: Event) -> None:
        """Remember the run's result, which comes with its last event."""
        if event.kind == "run_ended":
            self._last = event.data

    def settle(self, steps: Sequence[StepVerdict]) -> None:
        """Tell what is not told yet: steps that were never started, in their order."""
        for step in steps:
            if step.name not in self._told:
                self._tell(step)

    def interrupted(self, error: BaseException) -> StepRunResult | None:
        """The result of a run that was interrupted; after a time limit its steps are told.

        ``None`` when the run had not begun.
        """
        if self._last is None:
            return None
        from pytest_harbor.graphs.result import run_from_plain
        from pytest_harbor.graphs.verdict import judge

        ended = replace(
            run_from_plain(self._last),
            outcome="cancelled",
            failure_kind=CANCELLED,
            failure_reason=interruption(error) or "interrupted",
        )
        if isinstance(error, pytest.fail.Exception):
            self.settle(judge(ended, threshold=1.0).steps)
        return ended

    def _tell_ended(self, data: Mapping[str, Any]) -> None:
        from pytest_harbor.graphs.result import step_from_plain
        from pytest_harbor.graphs.verdict import step_verdict

        step = step_from_plain(data)
        self._tell(step_verdict(step, self._positions[step.id]))

    def _tell(self, step: StepVerdict) -> None:
        self._told[step.name] = step_data(step)
        if self._is_told:
            emit(self._item, STEP, self._told[step.name])

    def _take_back(self, step_id: str) -> None:
        del self._told[step_id]
        if self._is_told:
            emit(self._item, RETRACTED, {"steps": len(self._told) + 1})
            for report in self._told.values():
                emit(self._item, STEP, report)
