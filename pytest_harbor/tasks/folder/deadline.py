"""The episode's deadline, from the budgets of its turns (spec 14). Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.plan_types import HealthCheckPlan, TurnPlan


@dataclass(frozen=True)
class Deadline:
    """Seconds an episode may take. ``enforced``: computed from the task."""

    seconds: float
    enforced: bool
    warnings: tuple[str, ...] = ()


def episode_deadline(turns: Sequence[TurnPlan], settings: Settings) -> Deadline:
    """The sum over the turns, or the default where that does not apply.

    With ``enforce_task_timeouts`` the clock starts when the sandbox is ready, without
    it with the episode.
    """
    default = settings.default_episode_timeout_seconds
    if not settings.enforce_task_timeouts:
        return Deadline(default, enforced=False)

    unlimited = [turn.name for turn in turns if turn.agent_budget_seconds is None]
    if unlimited:
        text = (
            f"'{unlimited[0]}' has no agent timeout_sec:"
            f" the episode is limited to {default:g} s"
        )
        return Deadline(
            default,
            enforced=True,
            warnings=(text,),
        )

    total = sum(turn_seconds(turn, settings) for turn in turns)
    if total > default:
        text = f"the turns' budgets add up to {total:g} s, more than {default:g} s"
        return Deadline(total, enforced=True, warnings=(text,))
    return Deadline(total, enforced=True)


def turn_seconds(turn: TurnPlan, settings: Settings) -> float:
    """The longest that one turn may take, everything running to its limit."""
    separate = turn.verifier.mode == "separate"
    return (
        settings.agent_setup_timeout_s
        + (turn.setup_budget_seconds or 0.0)
        + (health_check_seconds(turn.healthcheck) if turn.healthcheck else 0.0)
        + (turn.agent_budget_seconds or 0.0)
        + turn.verifier.budget_seconds
        + settings.verifier_grace_s
        + sum(hook.timeout_seconds for hook in turn.hooks)
        + (settings.sandbox_start_timeout_s if separate else 0.0)
    )


def health_check_seconds(check: HealthCheckPlan) -> float:
    """The worst case of the algorithm of spec 3.7.

    An attempt may start just before the grace period ends and run its full time,
    then its pause follows; only after that do failures count.
    """
    counted = max(1, check.retries)
    seconds = counted * check.timeout_seconds + (counted - 1) * check.interval_seconds
    if check.start_period_seconds > 0:
        seconds += (
            check.start_period_seconds
            + check.timeout_seconds
            + check.start_interval_seconds
        )
    return seconds
