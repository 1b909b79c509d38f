"""Tell the steps of an item: each as its turn ends, and every declared one exactly once.

A report is sent as soon as a turn was graded (or failed to be), for that is what a person
who waits wants to see. An outage in a later turn may still send the episode back to its
start, and then nothing of the broken try may stay: what was sent is taken back with a
report of its own (``RETRACTED``), which the reporting process obeys in its counts and its
JUnit rows. Lines on the screen stay, followed by the line that says why it was tried
again. A turn that an outage struck is told only when no retry follows. Holding every
report until the end instead would be simpler and not live; keeping the first try's would
let steps contradict their episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pytest_harbor.collection.step_reports import (
    RETRACTED,
    STEP,
    emit,
    step_data,
)

if TYPE_CHECKING:
    import pytest

    from pytest_harbor.events import Event
    from pytest_harbor.tasks.folder.plan_types import EpisodePlan
    from pytest_harbor.verdicts import StepVerdict

UNDECIDED: Final = frozenset({"error", "agent_failed"})
"""How a turn may end with nobody knowing yet whether its episode is tried again."""


class LiveSteps:
    """The steps of one running item. Verdicts are those of ``episodes.outcome.judge``."""

    def __init__(
        self, item: pytest.Item, plan: EpisodePlan, *, must_miss: bool
    ) -> None:
        self._item = item
        self._plan = plan
        self._must_miss = must_miss
        self._turns: list[Mapping[str, Any]] = []
        self._running: str | None = None
        self._told: list[dict[str, Any]] = []

    def see(self, event: Event) -> None:
        """Follow the episode, and tell a step when its turn ended."""
        if event.kind == "attempt_started":
            self._turns = []
        elif event.kind == "turn_started":
            self._running = event.step
        elif event.kind == "turn_ended":
            self._running = None
            self._turns.append(event.data)
            if event.data["status"] not in UNDECIDED:
                self._tell(self._judged(self._turns)[: len(self._turns)])
        elif event.kind == "attempt_failed" and event.data["will_retry"]:
            self._take_back()

    def settle(self, steps: Sequence[StepVerdict]) -> None:
        """Tell what is not told yet; the episode's own verdict has the last word."""
        self._tell(steps)

    def interrupted(self, reason: str) -> None:
        """Tell the rest of an episode that the item's time limit ended."""
        turns = list(self._turns)
        if self._running is not None:
            turns.append(
                {
                    "name": self._running,
                    "index": len(turns),
                    "status": "error",
                    "failure_kind": "cancelled",
                    "failure_reason": reason,
                }
            )
        self._tell(self._judged(turns, reason))

    def _judged(
        self, turns: Sequence[Mapping[str, Any]], reason: str | None = None
    ) -> tuple[StepVerdict, ...]:
        """What every declared step would get if the episode ended here."""
        from pytest_harbor.episodes.outcome import judge
        from pytest_harbor.episodes.plain_data import result_from_plain

        so_far = result_from_plain(
            {
                "task_id": self._plan.task_id,
                "agent": self._plan.agent,
                "model": self._plan.model,
                "attempt": self._plan.attempt,
                "digest": self._plan.digest,
                "declared_steps": tuple(turn.name for turn in self._plan.turns),
                "is_multi_step": True,
                "status": "graded" if reason is None else "cancelled",
                "failure_reason": reason,
                "reward": 0.0,  # of the roll-up; the item's business, not a step's
                "turns": tuple(turns),
            }
        )
        return judge(so_far, threshold=0.0, must_miss=self._must_miss).steps

    def _tell(self, steps: Sequence[StepVerdict]) -> None:
        reports = [step_data(step) for step in steps]
        if [_essence(r) for r in self._told] != [
            _essence(r) for r in reports[: len(self._told)]
        ]:
            self._take_back()
        for report in reports[len(self._told) :]:
            emit(self._item, STEP, report)
            self._told.append(report)

    def _take_back(self) -> None:
        if self._told:
            emit(self._item, RETRACTED, {"steps": len(self._told)})
            self._told = []


def _essence(report: Mapping[str, Any]) -> tuple[object, ...]:
    """What two reports of the same step must agree on."""
    return report["name"], report["outcome"], report["reward"]
