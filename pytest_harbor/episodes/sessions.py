"""The session of an agent: its end, and the one trajectory of an episode (spec 16)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from pytest_harbor.agents.python_agent import end_session
from pytest_harbor.episodes.stage import Stage
from pytest_harbor.episodes.tries import Try
from pytest_harbor.errors import SandboxError, TrajectoryError
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.tasks.folder.plan_types import EpisodePlan

TRAJECTORY: Final = "trajectory.json"
"""Of a session that served several turns, in the episode's folder."""


async def close_session(
    stage: Stage, logs: Path, warn: Callable[[str], object]
) -> None:
    """Close the agent's session, if one is open. Raises SandboxError."""
    if not stage.session_is_open:
        return
    stage.session_is_open = False
    limit = stage.plan.agent_setup_timeout_seconds
    with anyio.move_on_after(limit) as scope:
        problem = await end_session(stage.agent, stage.sandbox, logs)
    if scope.cancelled_caught:
        problem = f"ending the agent's session ran out of its {limit:g} s"
    if problem:
        warn(problem)


async def close_after_the_end(stage: Stage, this: Try) -> None:
    """Close a session that an early stop left open; it costs no score."""
    if not stage.session_is_open:
        return
    logs = this.turns[-1].logs
    assert logs is not None
    try:
        await close_session(stage, logs / "agent", this.warnings.append)
    except SandboxError as error:
        this.warnings.append(f"the agent's session was not closed: {error}")
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(stage.seed.masker.folder, logs)


def keep_trajectory(
    this: Try, plan: EpisodePlan, *, logs: Path, masker: Masker
) -> Path | None:
    """The trajectory of the episode's one session, written if it served several turns.

    ``None`` when there were several sessions, or nothing to tell.
    """
    if not plan.keeps_session:
        ran = [turn for turn in this.turns if turn.ran_agent]
        return ran[0].trajectory if len(ran) == 1 else None
    if not this.trajectories:
        return None
    from pytest_harbor.agents.trajectory import read_trajectory
    from pytest_harbor.agents.trajectory_totals import join_trajectories

    try:
        turns = [read_trajectory(turn) for turn in this.trajectories]
    except TrajectoryError as error:
        problem = str(error).splitlines()[0]
        this.warnings.append(f"the turns' trajectories were not joined: {problem}")
        return None
    document = masker.data(join_trajectories(turns).to_json())
    path = logs / TRAJECTORY
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path
