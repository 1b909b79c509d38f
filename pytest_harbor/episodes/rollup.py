"""Reward roll-up: from turns to the episode's reward (spec 10). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pytest_harbor.episodes.result import TurnResult
from pytest_harbor.tasks.folder.plan_types import RewardStrategy
from pytest_harbor.verification.rewards import HEADLINE_KEY

EpisodeMode: TypeAlias = Literal["shared", "separate", "mixed"]

# A measured 0 without a reward file counts as this; its other keys are missing.
_ZERO: Mapping[str, float] = {HEADLINE_KEY: 0.0}


@dataclass(frozen=True)
class RollUp:
    """What the turns of one episode come to.

    ``terminal``: preparing step 1 failed. ``ungraded``: an agent failure, an outage
    or the deadline took the score away. Both, and ``masked``, have no reward.
    """

    status: Literal["graded", "terminal", "masked", "ungraded"]
    reward: float | None = None
    verifier_rewards: Mapping[str, float] = field(default_factory=dict)


def roll_up(turns: Sequence[TurnResult], strategy: RewardStrategy) -> RollUp:
    """Roll the started turns up; never looks at how many steps were declared."""
    statuses = {turn.status for turn in turns}
    if "masked" in statuses:
        return RollUp("masked")
    if not turns or statuses & {"agent_failed", "error"}:
        return RollUp("ungraded")
    if turns[0].status == "prepare_failed":
        return RollUp("terminal")
    counted = [_counted(turn) for turn in turns]
    if strategy == "final":
        reward, keys = counted[-1]
        return RollUp("graded", reward, dict(keys))
    return RollUp(
        "graded",
        _mean([reward for reward, _ in counted]),
        _mean_by_key([keys for _, keys in counted]),
    )


def common_mode(turns: Sequence[TurnResult]) -> EpisodeMode | None:
    """The mode of all turns that reached verification, or ``mixed`` (spec 8.4)."""
    modes = {turn.verifier_mode for turn in turns if turn.verifier_mode is not None}
    if len(modes) > 1:
        return "mixed"
    return modes.pop() if modes else None


def stopped_after(turns: Sequence[TurnResult], declared: int) -> str | None:
    """The step after which an episode of ``declared`` steps stopped early.

    ``None`` when every declared step was started, however the last one went.
    """
    return turns[-1].name if turns and len(turns) < declared else None


def _counted(turn: TurnResult) -> tuple[float, Mapping[str, float]]:
    if turn.status != "graded":
        return 0.0, _ZERO
    assert turn.reward is not None
    return turn.reward, turn.verifier_rewards


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # two rewards near the largest float
        return math.fsum(value / len(values) for value in values)


def _mean_by_key(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for turn in turns for key in turn)
    return {key: _mean([turn.get(key, 0.0) for turn in turns]) for key in keys}
