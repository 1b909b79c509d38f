"""Early stop: whether a turn ends its episode (spec 11). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pytest_harbor.episodes.result import TurnResult
from pytest_harbor.verification.rewards import HEADLINE_KEY

MinReward: TypeAlias = "float | Mapping[str, float] | None"


@dataclass(frozen=True)
class GateMiss:
    """A key of a ``min_reward`` that was not reached."""

    key: str
    found: float | None
    """``None`` when the reward file does not have the key."""
    minimum: float


def missed_gates(
    rewards: Mapping[str, float], min_reward: MinReward
) -> tuple[GateMiss, ...]:
    """Which keys of ``min_reward`` a turn's own reward file misses.

    A number gates the key ``reward``; a table each key it names and no other. An
    absent key misses even a negative minimum; equality meets one.
    """
    if min_reward is None:
        return ()
    gates = (
        min_reward if isinstance(min_reward, Mapping) else {HEADLINE_KEY: min_reward}
    )
    return tuple(
        GateMiss(key, rewards.get(key), float(minimum))
        for key, minimum in gates.items()
        if key not in rewards or rewards[key] < minimum
    )


def gate_met(rewards: Mapping[str, float], min_reward: MinReward) -> bool | None:
    """Whether ``min_reward`` is met; ``None`` when the turn has none."""
    return None if min_reward is None else not missed_gates(rewards, min_reward)


def stops_episode(turn: TurnResult) -> bool:
    """True when no later turn may start (the five rows of spec 11)."""
    return turn.status != "graded" or turn.min_reward_met is False
