"""One try of an episode, and the results that are made of it."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_harbor.agents.oracle import has_whole_solution
from pytest_harbor.episodes.result import (
    EpisodeResult,
    EpisodeStatus,
    FailedAttempt,
    Phase,
    TurnResult,
)
from pytest_harbor.episodes.retry import is_terminal
from pytest_harbor.episodes.rollup import common_mode, roll_up, stopped_after
from pytest_harbor.episodes.seed import ORACLE
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.tasks.folder.plan_types import EpisodePlan

TURNS_FOLDER = "turns"
_PHASES: tuple[Phase, ...] = ("prepare", "agent", "collect", "verify")
_WHOLE: frozenset[EpisodeStatus] = frozenset(
    {"graded", "masked", "terminal", "agent_failed"}
)
"""Ends that a turn brought about; after the others, no step is one to stop after."""


@dataclass
class Try:
    """How one try of the episode goes."""

    number: int
    """1-based."""
    started_at: float = field(default_factory=time.time)
    started: float = field(default_factory=time.monotonic)
    status: EpisodeStatus = "graded"
    turns: list[TurnResult] = field(default_factory=list)
    failure_kind: str | None = None
    failure_reason: str | None = None
    failed_phase: Phase | None = None
    policy_says_retry: bool = False
    seed_seconds: float = 0.0
    cleanup_seconds: float = 0.0
    kept: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)
    trajectories: list[Mapping[str, Any]] = field(default_factory=list)
    """Of the turns that have one, in order."""

    def end(
        self, status: EpisodeStatus, kind: str, reason: str, phase: Phase | None
    ) -> None:
        """Note how it ended, when not with a score."""
        self.status = status
        self.failure_kind = kind
        self.failure_reason = reason
        self.failed_phase = phase

    def mask(self, masker: Masker) -> None:
        """Mask what says how it ended; a kind may be an agent's own words."""
        if self.failure_kind is not None:
            self.failure_kind = masker.text(self.failure_kind)
        if self.failure_reason is not None:
            self.failure_reason = masker.text(self.failure_reason)

    def as_failed(self) -> FailedAttempt:
        """The record of a try that ended without a result."""
        assert self.failure_kind is not None
        return FailedAttempt(
            number=self.number,
            failure_kind=self.failure_kind,
            failure_reason=self.failure_reason or "",
            terminal=is_terminal(self.status, policy_says_retry=self.policy_says_retry),
            started_at=self.started_at,
            seconds=time.monotonic() - self.started,
            turns=tuple(self.turns),
        )


def set_aside(attempt: FailedAttempt, logs: Path) -> FailedAttempt:
    """Move a failed try's logs out of the way of the next one, to ``try-<n>``."""
    turns = logs / TURNS_FOLDER
    aside = logs / f"try-{attempt.number}"
    if not turns.exists():
        return attempt
    shutil.rmtree(aside, ignore_errors=True)
    turns.rename(aside)
    return replace(
        attempt, turns=tuple(_moved(turn, turns, aside) for turn in attempt.turns)
    )


def _moved(turn: TurnResult, source: Path, target: Path) -> TurnResult:
    paths: dict[str, Any] = {"logs": target / turn.name}
    if turn.trajectory is not None:
        paths["trajectory"] = target / turn.trajectory.relative_to(source)
    return replace(turn, **paths)


def result_of(this: Try, plan: EpisodePlan, *, masker: Masker) -> EpisodeResult:
    """The episode's result, as far as its last try and its plan tell it."""
    rolled = roll_up(this.turns, plan.reward_strategy)
    is_graded = this.status == "graded"
    # A graded episode has no failure of its own, but its last turn may have one.
    failure = this.turns[-1] if is_graded else this
    stopped = stopped_after(this.turns, len(plan.turns))
    return EpisodeResult(
        task_id=plan.task_id,
        agent=plan.agent,
        model=plan.model,
        attempt=plan.attempt,
        status=this.status,
        declared_steps=tuple(turn.name for turn in plan.turns),
        digest=plan.digest,
        reward=rolled.reward if is_graded else None,
        verifier_rewards=rolled.verifier_rewards if is_graded else {},
        verifier_mode=common_mode(this.turns),
        turns=tuple(this.turns),
        stopped_after_turn=stopped if this.status in _WHOLE else None,
        failure_kind=failure.failure_kind,
        failure_reason=failure.failure_reason,
        failed_phase=failure.failed_phase,
        durations=_durations(this),
        is_multi_step=plan.is_multi_step,
        validated=has_whole_solution(plan) if plan.agent == ORACLE else None,
        kept_sandboxes=this.kept,
        warnings=(*plan.warnings, *map(masker.text, this.warnings)),
    )


def _durations(this: Try) -> dict[str, float]:
    """Seconds of the try: seed, each phase summed over turns, clean-up."""
    durations = {"seed": this.seed_seconds}
    for phase in _PHASES:
        spent = [
            turn.durations[phase] for turn in this.turns if phase in turn.durations
        ]
        if spent:
            durations[phase] = math.fsum(spent)
    durations["cleanup"] = this.cleanup_seconds
    return durations
