"""The arithmetic of the deadline (spec 14)."""

from __future__ import annotations

import pytest

from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.deadline import (
    episode_deadline,
    health_check_seconds,
    turn_seconds,
)
from pytest_harbor.tasks.folder.plan_types import (
    CollectHookPlan,
    EnvironmentPlan,
    HealthCheckPlan,
    TurnPlan,
    VerifierPlan,
)

SETTINGS = Settings()


def turn(
    *,
    agent: float | None = 900.0,
    verifier: float = 600.0,
    hooks: tuple[float, ...] = (),
    setup: float | None = None,
    check: HealthCheckPlan | None = None,
    separate: bool = False,
) -> TurnPlan:
    return TurnPlan(
        index=0,
        name="build",
        instruction="",
        agent_user=None,
        agent_budget_seconds=agent,
        verifier=VerifierPlan(
            mode="separate" if separate else "shared",
            budget_seconds=verifier,
            tests=(),
            environment=EnvironmentPlan() if separate else None,
        ),
        artifacts=(),
        hooks=tuple(CollectHookPlan("x", timeout_seconds=limit) for limit in hooks),
        setup_budget_seconds=setup,
        has_setup=setup is not None,
        healthcheck=check,
    )


# The worked example of the specification, after scaling by 1.5.
FIRST = turn(agent=2700, verifier=900, hooks=(60,))
SECOND = turn(
    agent=1350,
    verifier=180,
    hooks=(60, 30),
    setup=1350,
    check=HealthCheckPlan("x", start_period_seconds=20, retries=5),
    separate=True,
)


def test_the_worked_example() -> None:
    assert turn_seconds(FIRST, SETTINGS) == 4080
    assert turn_seconds(SECOND, SETTINGS) == 4215

    deadline = episode_deadline([FIRST, SECOND], SETTINGS)

    assert (deadline.seconds, deadline.enforced) == (8295, True)
    assert deadline.warnings == ()


def test_a_sum_above_the_default_stands_with_a_warning() -> None:
    long = turn(agent=18_000, verifier=900, hooks=(60,))

    deadline = episode_deadline([long, SECOND], SETTINGS)

    assert (deadline.seconds, deadline.enforced) == (23_595, True)
    assert deadline.warnings == (
        "the turns' budgets add up to 23595 s, more than 21600 s",
    )


def test_a_turn_without_an_agent_budget_takes_the_default_for_all() -> None:
    deadline = episode_deadline([FIRST, turn(agent=None)], SETTINGS)

    assert (deadline.seconds, deadline.enforced) == (21_600, True)
    assert "'build' has no agent timeout_sec" in deadline.warnings[0]


def test_without_enforcement_the_default_is_the_deadline() -> None:
    settings = Settings(
        enforce_task_timeouts=False, default_episode_timeout_seconds=1000
    )

    deadline = episode_deadline([FIRST, SECOND], settings)

    assert (deadline.seconds, deadline.enforced) == (1000, False)
    assert deadline.warnings == ()


@pytest.mark.parametrize(
    ("check", "seconds"),
    [
        (HealthCheckPlan("x"), 3 * 30 + 2 * 5),
        (HealthCheckPlan("x", retries=0), 30),
        (HealthCheckPlan("x", retries=1, start_period_seconds=60), 30 + 60 + 30 + 5),
        (HealthCheckPlan("x", start_period_seconds=20, retries=5), 225),
        (HealthCheckPlan("x", start_interval_seconds=99), 100),
    ],
)
def test_the_worst_case_of_a_health_check(
    check: HealthCheckPlan, seconds: float
) -> None:
    assert health_check_seconds(check) == seconds
