"""The polling algorithm of spec 3.7, against a scripted clock."""

from __future__ import annotations

import anyio
import pytest

from pytest_harbor.sandboxes.api import ExecResult
from pytest_harbor.sandboxes.health import poll
from pytest_harbor.tasks.folder.plan_types import HealthCheckPlan


class Scripted:
    """A sandbox whose attempts take ``seconds`` and end as scripted."""

    def __init__(self, codes, seconds=1.0):
        self.codes = list(codes)
        self.seconds = seconds
        self.now = 0.0
        self.calls = []
        self.pauses = []

    async def exec(self, command, *, user=None, timeout_seconds=None):
        self.calls.append((self.now, user, timeout_seconds))
        self.now += self.seconds
        code = self.codes.pop(0) if self.codes else 1
        return ExecResult(code, "", "", timed_out=code is None)

    async def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds

    def poll(self, **check):
        plan = HealthCheckPlan("true", **check)
        return anyio.run(
            lambda: poll(
                plan, self, user="bob", clock=lambda: self.now, sleep=self.sleep
            )
        )


@pytest.mark.parametrize(
    ("codes", "check", "healthy", "attempts", "pauses"),
    [
        ([0], {}, True, 1, []),
        ([1, 0], {}, True, 2, [5.0]),
        ([1, 1, 1, 0], {}, False, 3, [5.0, 5.0]),
        ([None, 0], {}, True, 2, [5.0]),
        ([1], {"retries": 0}, False, 1, []),
        ([1], {"retries": -3}, False, 1, []),
        # started at 0 and 3 within the grace period, counted from 6 on
        ([1] * 9, {"start_period_seconds": 4, "start_interval_seconds": 2, "retries": 2,
                   "interval_seconds": 7}, False, 4, [2, 2, 7]),
        ([1, 0], {"start_period_seconds": 100, "start_interval_seconds": 2}, True, 2, [2]),
    ],
)  # fmt: skip
def test_poll(codes, check, healthy, attempts, pauses):
    sandbox = Scripted(codes)
    outcome = sandbox.poll(**check)
    assert (outcome.healthy, outcome.attempts) == (healthy, attempts)
    assert sandbox.pauses == pauses


def test_an_attempt_has_its_limit_and_its_user():
    sandbox = Scripted([0])
    sandbox.poll(timeout_seconds=9)
    assert sandbox.calls == [(0.0, "bob", 9)]
