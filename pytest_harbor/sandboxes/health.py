"""Health checks: the polling algorithm of spec 3.7."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from pytest_harbor.sandboxes.api import ExecResult, Sandbox
from pytest_harbor.sandboxes.environment import User
from pytest_harbor.tasks.folder.plan_types import HealthCheckPlan


@dataclass(frozen=True)
class HealthOutcome:
    """How polling ended. ``last`` is the last attempt's result."""

    healthy: bool
    attempts: int
    last: ExecResult


async def poll(
    check: HealthCheckPlan,
    sandbox: Sandbox,
    *,
    user: User | None = None,
    clock: Callable[[], float] = anyio.current_time,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> HealthOutcome:
    """Run the check's command until it passes or has failed often enough.

    An attempt counts as within the grace period by the time it *started*. A
    success ends the check at once, in or out of the grace period.

    Raises:
        SandboxLost: the command could not be run at all (an outage, not a failure).
    """
    grace_ends = clock() + check.start_period_seconds
    failures = attempts = 0
    while True:
        in_grace = clock() < grace_ends
        result = await sandbox.exec(
            check.command, user=user, timeout_seconds=check.timeout_seconds
        )
        attempts += 1
        if result.ok:
            return HealthOutcome(True, attempts, result)
        if in_grace:
            await sleep(check.start_interval_seconds)
            continue
        failures += 1
        if failures >= max(1, check.retries):
            return HealthOutcome(False, attempts, result)
        await sleep(check.interval_seconds)
