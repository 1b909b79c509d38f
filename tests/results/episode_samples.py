"""Results of episodes for tests."""

from __future__ import annotations

from typing import Any

from pytest_harbor.episodes.result import EpisodeResult, TurnResult


def make_result(**changes: Any) -> EpisodeResult:
    """A graded single-step result, with changes."""
    values: dict[str, Any] = {
        "task_id": "t",
        "agent": "oracle",
        "model": None,
        "attempt": 1,
        "status": "graded",
        "declared_steps": ("t",),
        "digest": "abc",
        "reward": 1.0,
        "verifier_rewards": {"reward": 1.0},
        "sandbox": "local",
        "started_at": 1000.0,
        "seconds": 2.0,
    }
    return EpisodeResult(**values | changes)


def make_turn(name: str = "t", index: int = 0, **changes: Any) -> TurnResult:
    return TurnResult(name, index, changes.pop("status", "graded"), **changes)
