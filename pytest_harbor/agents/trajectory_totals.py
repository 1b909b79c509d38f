"""Trajectories counted, added up, and joined to one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pytest_harbor.agents.trajectory import FinalMetrics, Step, Trajectory

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Totals:
    """Numbers of one trajectory, for records; ``None`` where nobody said."""

    steps: int
    """Steps of any source, copied context left out."""
    agent_steps: int
    """Those of the agent."""
    tool_calls: int
    input_tokens: int | None
    """Those from a cache included."""
    cached_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None


def totals(trajectory: Trajectory) -> Totals:
    """Count and add up a trajectory.

    ``final_metrics`` win where they name a number; else the steps' metrics are added
    up, with those of called agents. Context that was copied from an earlier trajectory
    was paid for there.
    """
    own = [step for step in trajectory.steps if not step.is_copied_context]
    inner = [totals(other) for other in trajectory.subagent_trajectories or ()]
    used = [step.metrics for step in own if step.metrics is not None]
    final = trajectory.final_metrics or FinalMetrics()
    return Totals(
        steps=len(own),
        agent_steps=sum(step.source == "agent" for step in own),
        tool_calls=sum(len(step.tool_calls or ()) for step in own),
        input_tokens=_stated_or_sum(
            final.total_prompt_tokens,
            [metrics.prompt_tokens for metrics in used]
            + [other.input_tokens for other in inner],
        ),
        cached_tokens=_stated_or_sum(
            final.total_cached_tokens,
            [metrics.cached_tokens for metrics in used]
            + [other.cached_tokens for other in inner],
        ),
        output_tokens=_stated_or_sum(
            final.total_completion_tokens,
            [metrics.completion_tokens for metrics in used]
            + [other.output_tokens for other in inner],
        ),
        cost_usd=_stated_or_sum(
            final.total_cost_usd,
            [metrics.cost_usd for metrics in used]
            + [other.cost_usd for other in inner],
        ),
    )


def _stated_or_sum(
    stated: Number | None, parts: Iterable[Number | None]
) -> Number | None:
    return add_known(parts) if stated is None else stated


def add_known(numbers: Iterable[Number | None]) -> Number | None:
    """The sum of the numbers that are known; ``None`` when none is."""
    known = [number for number in numbers if number is not None]
    return sum(known[1:], known[0]) if known else None


def final_metrics(steps: Sequence[Step], cost_usd: float | None = None) -> FinalMetrics:
    """Totals of these steps; a cost that the agent stated for all of them wins."""
    used = [step.metrics for step in steps if step.metrics is not None]
    return FinalMetrics(
        total_prompt_tokens=add_known(metrics.prompt_tokens for metrics in used),
        total_completion_tokens=add_known(
            metrics.completion_tokens for metrics in used
        ),
        total_cached_tokens=add_known(metrics.cached_tokens for metrics in used),
        total_cost_usd=(
            add_known(metrics.cost_usd for metrics in used)
            if cost_usd is None
            else cost_usd
        ),
        total_steps=len(steps),
    )


def join_trajectories(turns: Sequence[Trajectory]) -> Trajectory:
    """One trajectory of several turns of one session, in order (spec 16).

    Steps are numbered anew and totals added up; agent and session are the last turn's,
    which knows the version and the session that the others led to.

    Raises:
        ValueError: there is no turn.
    """
    if not turns:
        raise ValueError("no turn to join")
    last = turns[-1]
    steps = [step for turn in turns for step in turn.steps]
    numbers = [totals(turn) for turn in turns]
    inner = {
        other.trajectory_id: other
        for turn in turns
        for other in turn.subagent_trajectories or ()
    }
    notes = [turn.notes for turn in turns if turn.notes]
    return Trajectory(
        session_id=last.session_id,
        agent=last.agent,
        steps=[
            step.model_copy(update={"step_id": number})
            for number, step in enumerate(steps, start=1)
        ],
        notes="\n".join(notes) or None,
        final_metrics=FinalMetrics(
            total_prompt_tokens=add_known(turn.input_tokens for turn in numbers),
            total_completion_tokens=add_known(turn.output_tokens for turn in numbers),
            total_cached_tokens=add_known(turn.cached_tokens for turn in numbers),
            total_cost_usd=add_known(turn.cost_usd for turn in numbers),
            total_steps=len(steps),
        ),
        subagent_trajectories=list(inner.values()) or None,
    )
