"""From a run's result to what its item and its steps get (design 4). Pure."""

from __future__ import annotations

from pytest_harbor.graphs.result import StepResult, StepRunResult
from pytest_harbor.verdicts import Outcome, StepVerdict, Verdict, reaches


def judge(
    result: StepRunResult, *, threshold: float, allow_tolerated: bool = False
) -> Verdict:
    """Judge a run: every score must reach the threshold, and no step may have failed.

    *Error* is infrastructure, *failed* the agent's or the task's own doing. A tolerated
    failure (``fail_task_on_error: false``) fails the item unless it is allowed to be.
    """
    steps = _step_verdicts(result)
    if result.outcome == "cancelled":
        reason = result.failure_reason or "cancelled"
        return Verdict("error", _with_scores(result, f"interrupted: {reason}"), steps)
    fatal = _first_failed(result)
    if fatal is not None:
        outcome: Outcome = "error" if fatal.is_infrastructure else "failed"
        return Verdict(outcome, _with_scores(result, _step_failed(fatal)), steps)
    tolerated = [step for step in result.steps if step.status == "tolerated"]
    if not tolerated and result.failure_reason is not None:  # refused
        return Verdict("error", result.failure_reason, steps)
    if tolerated and not allow_tolerated:
        problem = f"{_step_failed(tolerated[0])} (tolerated; --harbor-allow-tolerated)"
        return Verdict("failed", _with_scores(result, problem), steps)
    return _on_scores(result, threshold, steps)


def _on_scores(
    result: StepRunResult, threshold: float, steps: tuple[StepVerdict, ...]
) -> Verdict:
    if not result.scores:
        return Verdict("passed", "no verifier: nothing was scored", steps)
    assert result.reward is not None
    low = {
        name: score
        for name, score in result.scores.items()
        if not reaches(score, threshold)
    }
    reward = f"reward {result.reward:.2f}"
    if not low:
        return Verdict("passed", f"{reward} >= {threshold:.2f}", steps)
    others = ", ".join(f"{name} {score:.2f}" for name, score in low.items())
    return Verdict("failed", f"{reward} < {threshold:.2f}: {others}", steps)


def _with_scores(result: StepRunResult, problem: str) -> str:
    """The reward comes first, because many dashboards show nothing else."""
    if result.reward is None:
        return problem
    return f"reward {result.reward:.2f}, but {problem}"


def _step_failed(step: StepResult) -> str:
    return f"step '{step.id}' ({step.type}) failed: {step.error}"


def _step_verdicts(result: StepRunResult) -> tuple[StepVerdict, ...]:
    return tuple(
        step_verdict(step, index, result) for index, step in enumerate(result.steps)
    )


def step_verdict(
    step: StepResult, index: int, result: StepRunResult | None = None
) -> StepVerdict:
    """What one step gets; ``result`` is known only once the run is over."""
    outcome, message = _step_outcome(step, result)
    return StepVerdict(
        name=step.id,
        index=index,
        outcome=outcome,
        message=message,
        reward=_score(step),
        seconds=step.seconds,
    )


def _step_outcome(
    step: StepResult, result: StepRunResult | None
) -> tuple[Outcome, str]:
    match step.status:
        case "passed":
            return "passed", ""
        case "failed":
            return ("error" if step.is_infrastructure else "failed"), step.error
        case "tolerated":
            return "failed", f"tolerated: {step.error}"
        case "cancelled" | "retried":
            return "error", step.error or "cancelled"
        case "not_run":
            return "skipped", f"not run: {_why_not_run(result)}"


def _why_not_run(result: StepRunResult | None) -> str:
    if result is None:
        return "the run ended before it"
    stopper = _first_failed(result)
    if stopper is not None:
        return f"stopped after {stopper.id}"
    # All of a refusal is the item's message; a step says enough with its start.
    reason, *more = (result.failure_reason or result.outcome).splitlines()
    return f"{reason} (and {len(more)} more)" if more else reason


def _first_failed(result: StepRunResult) -> StepResult | None:
    """The first step that failed for good: its error is the task's (spec 2.2)."""
    fatal = (step for step in result.steps if step.status == "failed")
    return min(fatal, key=lambda step: step.started_at + step.seconds, default=None)


def _score(step: StepResult) -> float | None:
    """The score of a step with one verifier; several have no one number."""
    return next(iter(step.scores.values())) if len(step.scores) == 1 else None
