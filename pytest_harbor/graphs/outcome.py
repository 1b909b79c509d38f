"""What a run came to: scores, reward, outcome (spec 2.4). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

from pytest_harbor.errors import (
    AGENT_RUN_ERROR,
    AGENT_TIMEOUT,
    INTERNAL_ERROR,
    STEP_FAILED,
    AgentError,
    HarborError,
)
from pytest_harbor.verdicts import reaches

Outcome: TypeAlias = Literal[
    "failed",  # an error, or a failed step that no retry recovered
    "passed",  # at least one score, and every one reaches the threshold
    "scored_below",  # at least one score, and some do not
    "unscored",
    "cancelled",
]
AGGREGATED_KEY: Final = "verifier_ids"
"""Key of an entry that has its score from other verifiers' rows."""
_NOT_INFRASTRUCTURE: Final = frozenset({STEP_FAILED, AGENT_RUN_ERROR, AGENT_TIMEOUT})


def scores(metadata: Mapping[str, Any]) -> dict[str, float]:
    """The reward object: each verifier's score."""
    entries: Mapping[str, Any] = metadata.get("verifications") or {}
    return {
        name: float(score)
        for name, entry in entries.items()
        if isinstance(score := entry.get("score"), (int, float))
    }


def reward(metadata: Mapping[str, Any]) -> float | None:
    """The scalar reward, or ``None`` when nobody gave a score.

    With several scores it is that of the one ``aggregate_verifiers`` step, if there is
    exactly one, else the lowest.
    """
    found = scores(metadata)
    if not found:
        return None
    entries = metadata["verifications"]
    aggregates = [name for name in found if AGGREGATED_KEY in entries[name]]
    if len(aggregates) == 1:
        return found[aggregates[0]]
    return min(found.values())


def unrecovered(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of ``failed_steps`` that no retry made good."""
    entries: Iterable[Mapping[str, Any]] = metadata.get("failed_steps") or ()
    return [entry for entry in entries if not entry.get("retried")]


def outcome(
    metadata: Mapping[str, Any], *, has_error: bool = False, threshold: float = 1.0
) -> Outcome:
    """The outcome of a run that came to its end. ``has_error``: beside its steps."""
    if has_error or unrecovered(metadata):
        return "failed"
    found = scores(metadata)
    if not found:
        return "unscored"
    is_enough = all(reaches(score, threshold) for score in found.values())
    return "passed" if is_enough else "scored_below"


def failure_kind(error: BaseException) -> str:
    """The ``failure_kind`` of what a step raised; anything unknown is a bug of ours."""
    return error.kind if isinstance(error, HarborError) else INTERNAL_ERROR


def is_infrastructure(error: BaseException) -> bool:
    """Whether a step failed for no fault of the agent or of the task.

    An item whose step fails so is an error, not a failure (design 4).
    """
    if isinstance(error, AgentError):
        return False
    return failure_kind(error) not in _NOT_INFRASTRUCTURE
