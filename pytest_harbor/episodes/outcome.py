"""From an episode's result to what its item and its steps get (design 4). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_harbor.episodes.gates import GateMiss, missed_gates
from pytest_harbor.episodes.result import EpisodeResult, TurnResult
from pytest_harbor.verdicts import Outcome, StepVerdict, Verdict, reaches


def judge(
    result: EpisodeResult, *, threshold: float, must_miss: bool = False
) -> Verdict:
    """Judge an episode against its threshold.

    *Error* is infrastructure, *failed* the agent's work; the two never mix. With
    ``must_miss`` (doing nothing, under validation) a graded episode passes exactly when
    it would have failed.
    """
    steps = _step_verdicts(result)
    if result.status != "graded":
        return Verdict("error", _error_message(result), steps)
    assert result.reward is not None
    is_enough = reaches(result.reward, threshold)
    verdict_on_reward = _compared(result.reward, threshold, is_enough=is_enough)
    problem = _problem(result)
    passes = is_enough and not problem
    if must_miss:
        return _judge_must_miss(verdict_on_reward, problem, steps, passes=passes)
    message = verdict_on_reward
    if not is_enough and not problem:
        problem = _missing_headline(result) or _agent_trouble(result)
    if problem:
        message += f", but {problem}" if is_enough else f": {problem}"
    return Verdict("passed" if passes else "failed", message, steps)


def _judge_must_miss(
    verdict_on_reward: str, problem: str, steps: Sequence[StepVerdict], *, passes: bool
) -> Verdict:
    # A step that fails for an agent that does nothing is what validation wants.
    kept = tuple(
        StepVerdict(s.name, s.index, "passed", s.message, s.reward, s.seconds)
        if s.outcome == "failed"
        else s
        for s in steps
    )
    if passes:
        message = f"{verdict_on_reward}, but doing nothing must not reach it"
        return Verdict("failed", message, kept)
    message = f"{verdict_on_reward}: {problem}" if problem else verdict_on_reward
    return Verdict("passed", message, kept)


def format_reward(reward: float, other: float | None = None) -> str:
    """A reward with two digits, or as many as tell it from ``other``."""
    for digits in range(2, 13):
        text = f"{reward:.{digits}f}"
        if other is None or reward == other or text != f"{other:.{digits}f}":
            return text
    return repr(reward)


def _compared(reward: float, threshold: float, *, is_enough: bool) -> str:
    # Within the tolerance the two count as equal, and should look so.
    other = None if is_enough and reward < threshold else threshold
    sign = ">=" if is_enough else "<"
    shown = format_reward(reward, other)
    return (
        f"reward {shown} {sign} {format_reward(threshold, reward if other else None)}"
    )


def _problem(result: EpisodeResult) -> str:
    """Why a graded episode fails whatever its reward; empty when nothing does."""
    if not result.turns:
        return ""
    last = result.turns[-1]
    step = f"step {last.name}" if result.is_multi_step else ""
    what = _turn_problem(last)
    if not what:
        return ""
    if last.status == "graded":
        return f"{step} {what}".strip()
    return f"{step}: {what}" if step else what


def _missing_headline(result: EpisodeResult) -> str:
    """The latest turn whose reward file had no headline key, and what to do."""
    for turn in reversed(result.turns):
        if turn.headline_problem:
            step = f"step {turn.name}: " if result.is_multi_step else ""
            return f"{step}{turn.headline_problem}"
    return ""


def _agent_trouble(result: EpisodeResult) -> str:
    """What befell the agent in the latest turn where anything did, its work being graded."""
    for turn in reversed(result.turns):
        if turn.failed_phase == "agent" and turn.failure_kind is not None:
            reason = (turn.failure_reason or "").strip().partition("\n")[0]
            what = f"the agent failed ({turn.failure_kind}): {reason}"
        elif turn.agent_timed_out:
            what = "the agent ran out of time"
        else:
            continue
        return f"step {turn.name}: {what}" if result.is_multi_step else what
    return ""


def _turn_problem(turn: TurnResult) -> str:
    """What is wrong with a counted turn, in words for the item's first line."""
    if turn.status == "no_reward":
        return turn.failure_reason or "no reward"
    if turn.status == "prepare_failed":
        return f"preparation failed: {turn.failure_reason} ({turn.failure_kind})"
    if turn.status == "counted_as_zero":
        return (
            f"the agent failed ({turn.failure_kind}), counted as zero: "
            f"{turn.failure_reason}"
        )
    misses = missed_gates(turn.verifier_rewards, turn.min_reward)
    if not misses:
        return ""
    shown = ", ".join(_miss_in_words(miss, turn) for miss in misses)
    return f"missed min_reward ({shown})"


def _miss_in_words(miss: GateMiss, turn: TurnResult) -> str:
    name = "" if isinstance(turn.min_reward, (int, float)) else f"{miss.key} "
    if miss.found is None:
        return f"no key {miss.key!r}, expected {format_reward(miss.minimum)}"
    found = format_reward(miss.found, miss.minimum)
    return f"{name}{found} < {format_reward(miss.minimum, miss.found)}"


def _error_message(result: EpisodeResult) -> str:
    reason = result.failure_reason or "no reason given"
    tries = len(result.failed_attempts)
    after = f" (after {tries} tries)" if tries > 1 else ""
    if result.status == "masked":
        return f"masked: {reason}"
    if result.status == "refused":
        return f"refused: {reason}"
    first, *rest = f"{result.failure_kind}: {reason}".splitlines()
    return "\n".join([first + after, *rest])


def _step_verdicts(result: EpisodeResult) -> tuple[StepVerdict, ...]:
    verdicts = [_started_step(turn, result) for turn in result.turns]
    why = _why_not_run(result)
    verdicts += [
        StepVerdict(name, index, "skipped", f"not run: {why}")
        for index, name in enumerate(result.declared_steps)
        if index >= len(verdicts)
    ]
    return tuple(verdicts)


def _why_not_run(result: EpisodeResult) -> str:
    if result.turns:
        return f"stopped after {result.turns[-1].name}"
    reason = (result.failure_reason or result.status).splitlines()
    return reason[0] if reason else result.status


def _started_step(turn: TurnResult, result: EpisodeResult) -> StepVerdict:
    outcome, message = _step_outcome(turn, result)
    return StepVerdict(
        turn.name, turn.index, outcome, message, turn.reward, turn.seconds
    )


def _step_outcome(turn: TurnResult, result: EpisodeResult) -> tuple[Outcome, str]:
    if turn.status == "masked":
        return "error", f"masked: {turn.failure_reason}"
    if turn.status in ("error", "agent_failed"):
        kind = turn.failure_kind or result.failure_kind
        return "error", f"{kind}: {turn.failure_reason or result.failure_reason}"
    if turn.status == "prepare_failed":
        outcome: Outcome = "error" if turn.index == 0 else "failed"
        return outcome, f"{turn.failure_kind}: {turn.failure_reason}"
    if turn.status in ("no_reward", "counted_as_zero"):
        return "failed", _turn_problem(turn)
    misses = missed_gates(turn.verifier_rewards, turn.min_reward)
    if misses:
        return "failed", _gate_row(misses)
    assert turn.reward is not None
    return "passed", f"reward {format_reward(turn.reward)}"


def _gate_row(misses: Sequence[GateMiss]) -> str:
    """A step's own row: ``reward 0.30 < min_reward 0.50``, for each key missed."""
    rows = []
    for miss in misses:
        minimum = f"min_reward {format_reward(miss.minimum, miss.found)}"
        if miss.found is None:
            rows.append(f"no key {miss.key!r}, {minimum}")
        else:
            found = format_reward(miss.found, miss.minimum)
            rows.append(f"{miss.key} {found} < {minimum}")
    return ", ".join(rows)
