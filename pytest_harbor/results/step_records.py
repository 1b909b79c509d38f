"""Rows of the record files for runs of step tasks, in the shape of an episode's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_harbor.results.records import (
    EPISODE,
    FAILURES,
    ROLLOUTS,
    Origin,
    Records,
    plain,
    short,
    versions,
    write_json,
)

if TYPE_CHECKING:
    from pytest_harbor.graphs.result import StepRunResult
    from pytest_harbor.verdicts import Verdict

FORMAT: Final = "steps"
"""``format`` of these rows; those of task folders have none."""


def finished(
    records: Records,
    result: StepRunResult,
    verdict: Verdict,
    *,
    origin: Origin,
    attempt: int,
) -> None:
    """Write a run's row and its ``episode.json``.

    An error says nothing about the agent, and goes to the failures.
    """
    row = _row(result, verdict, origin, attempt)
    if verdict.outcome == "error":
        records.append(FAILURES, row | {"try": 1, "terminal": True, "final": True})
    else:
        records.append(ROLLOUTS, row)
    if result.logs is not None:
        write_json(result.logs / EPISODE, row)


def _row(
    result: StepRunResult, verdict: Verdict, origin: Origin, attempt: int
) -> dict[str, Any]:
    metadata = result.context.metadata
    return {
        "format": FORMAT,
        "node_id": origin.node_id,
        "task_id": result.task_id,
        "instance_id": result.instance_id,
        "agent": None,
        "model": result.model,
        "attempt": attempt,
        "sandbox": ", ".join(result.sandboxes) or None,
        "isolation": None,
        "min_reward": origin.min_reward,
        "is_test": origin.is_test,
        "is_xfail": origin.is_xfail,
        "worker": origin.worker,
        "logs": result.logs,
        "started_at": result.started_at,
        "ended_at": result.started_at + result.seconds,
        "seconds": result.seconds,
        "reward": result.reward,
        "verifier_rewards": dict(result.scores),
        "verifications": plain(metadata.get("verifications") or {}),
        "models": plain(metadata.get("models") or {}),
        "steps": plain(result.steps),
        "failed_steps": plain(metadata.get("failed_steps") or []),
        "failure_kind": result.failure_kind,
        "failure_reason": short(result.failure_reason),
        "warnings": list(result.warnings),
        "outcome": verdict.outcome,
        "message": verdict.message,
        "versions": versions(),
    }
