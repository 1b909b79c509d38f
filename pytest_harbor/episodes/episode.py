"""Running an episode: seed, turns, roll-up, and everything cleaned up after it.

Infrastructure never becomes a score: what goes wrong outside the agent's work ends a try
without one, and the episode is tried again where spec 17 and 19.5 allow it.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio

from pytest_harbor.agents.api import Agent
from pytest_harbor.agents.oracle import has_whole_solution
from pytest_harbor.agents.python_agent import close_agent, describe
from pytest_harbor.episodes.draft import TurnDraft
from pytest_harbor.episodes.gates import stops_episode
from pytest_harbor.episodes.plain_data import result_to_plain, turn_to_plain
from pytest_harbor.episodes.prepare import unhealthy
from pytest_harbor.episodes.reporter import Reporter
from pytest_harbor.episodes.result import (
    EpisodeResult,
    EpisodeStatus,
    FailedAttempt,
    Phase,
    TurnResult,
)
from pytest_harbor.episodes.retry import is_terminal, tries_again
from pytest_harbor.episodes.rollup import common_mode, roll_up, stopped_after
from pytest_harbor.episodes.sandbox_set import SandboxSet
from pytest_harbor.episodes.seed import ORACLE, Seed, check_provider, make_seed, refuse
from pytest_harbor.episodes.turn import Stage, run_turn
from pytest_harbor.errors import (
    CANCELLED,
    ENVIRONMENT_UNHEALTHY,
    INTERNAL_ERROR,
    SANDBOX_UNAVAILABLE,
    TASK_DEADLINE,
    HarborError,
    SandboxError,
    SandboxUnavailable,
    TaskRefused,
    UnsupportedByProvider,
)
from pytest_harbor.events import Observer
from pytest_harbor.sandboxes.api import Capabilities, Provider
from pytest_harbor.settings import Keep
from pytest_harbor.tasks.folder.plan_types import EpisodePlan

TURNS_FOLDER = "turns"
_FULL_REWARD = 1.0 - 1e-9


async def run(
    plan: EpisodePlan,
    provider: Provider,
    agent: Agent,
    observe: Observer | None = None,
    *,
    logs: Path,
    keep: Keep = "never",
    environ: Mapping[str, str] | None = None,
    debug: bool = False,
) -> EpisodeResult:
    """Run one episode; many may run at once in one event loop.

    ``logs`` is the episode's folder on the host; turns write below ``turns/<name>``, and an
    earlier try's are kept in ``try-<n>``. ``environ`` is where templates are resolved
    from, the process's own environment by default. ``keep="failed"`` keeps the
    sandboxes of an episode that is not graded, or below a reward of 1, or missed a gate.
    ``agent.setup`` and ``agent.close`` bracket each try.

    What belongs to the episode is told by the result's ``status``. Cancelling it
    raises as usual, after the clean-up. With ``debug``, errors of the host's file
    system are raised instead of reported.
    """
    episode = _Episode(
        plan, provider, agent, Reporter(observe, plan.episode_id), logs, keep, debug
    )
    return await episode.run(os.environ if environ is None else environ)


@dataclass
class _Try:
    """How one try of the episode ended."""

    number: int
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

    def end(
        self, status: EpisodeStatus, kind: str, reason: str, phase: Phase | None
    ) -> None:
        self.status = status
        self.failure_kind = kind
        self.failure_reason = reason
        self.failed_phase = phase


@dataclass
class _Episode:
    """One call of :func:`run`."""

    plan: EpisodePlan
    provider: Provider
    agent: Agent
    report: Reporter
    logs: Path
    keep: Keep
    debug: bool
    capabilities: Capabilities = Capabilities(available=False)  # noqa: RUF009 - frozen

    async def run(self, environ: Mapping[str, str]) -> EpisodeResult:
        started = _Try(0)
        self.report.send("episode_started")
        failed: list[FailedAttempt] = []
        number = 1
        while True:
            this = await self._try(number, environ)
            if this.status not in ("graded", "masked"):
                failed.append(self._failed_attempt(this))
            again = tries_again(
                this.status,
                number=number,
                retries=self.plan.retries,
                policy_says_retry=this.policy_says_retry,
            )
            if this.failure_kind is not None and this.status not in (
                "graded",
                "masked",
            ):
                self._report_failure(this, again)
            if not again:
                break
            failed[-1] = self._set_aside(failed[-1])
            number += 1
        result = self._result(this, started, tuple(failed))
        self.report.send("episode_ended", data=result_to_plain(result))
        return result

    async def _try(self, number: int, environ: Mapping[str, str]) -> _Try:
        """One try from seed to clean-up; its failures are in what it returns."""
        this = _Try(number)
        self.report.send("attempt_started", data={"try": number})
        try:
            seed = await self._seed(environ)
            await self._run_in_sandbox(this, seed)
        except (TaskRefused, UnsupportedByProvider) as error:
            this.end("refused", error.kind, error.message, "seed")
        except SandboxUnavailable as error:
            this.end("unavailable", SANDBOX_UNAVAILABLE, error.message, "seed")
        except anyio.get_cancelled_exc_class():
            this.end("cancelled", CANCELLED, "cancelled", None)
            self._report_failure(this, again=False)
            raise
        if this.failure_reason is not None:
            this.failure_reason = self.report.masker.text(this.failure_reason)
        return this

    async def _seed(self, environ: Mapping[str, str]) -> Seed:
        seed = make_seed(self.plan, environ)
        self.report.masker = seed.masker
        self.capabilities = await self.provider.probe()
        if not self.capabilities.available:
            raise SandboxUnavailable(self.capabilities.reason)
        refuse(
            self.plan,
            capabilities=self.capabilities,
            can_continue=bool(getattr(self.agent, "can_continue", False)),
            environ=environ,
        )
        check_provider(self.provider, self.plan, seed)
        return seed

    async def _run_in_sandbox(self, this: _Try, seed: Seed) -> None:
        sandboxes = SandboxSet(
            self.provider,
            self.plan.task_id,
            keeps=self.keep != "never" and self.capabilities.concurrent,
        )
        try:
            with anyio.CancelScope() as scope:
                await self._run_until(this, seed, sandboxes, scope)
            if scope.cancelled_caught:
                self._end_by_deadline(this)
        finally:
            await self._clean_up(this, sandboxes)

    async def _run_until(
        self, this: _Try, seed: Seed, sandboxes: SandboxSet, scope: anyio.CancelScope
    ) -> None:
        if not self.plan.deadline_enforced:
            scope.deadline = anyio.current_time() + self.plan.deadline_seconds
        try:
            stage = await self._start(this, seed, sandboxes)
            if stage is None:
                return
            if self.plan.deadline_enforced:
                scope.deadline = anyio.current_time() + self.plan.deadline_seconds
            await self._run_turns(this, stage)
        except (SandboxUnavailable, UnsupportedByProvider):
            raise
        except SandboxError as error:
            phase = this.failed_phase or "seed"
            this.end("outage", error.kind, error.message, phase)
        except OSError as error:
            if self.debug:
                raise
            reason = f"on the host: {describe(error)}"
            this.end("outage", INTERNAL_ERROR, reason, this.failed_phase or "seed")

    async def _start(
        self, this: _Try, seed: Seed, sandboxes: SandboxSet
    ) -> Stage | None:
        """Bring the sandbox up; ``None`` when its health check never passes."""
        started = time.monotonic()
        try:
            sandbox = await sandboxes.start(seed.environment)
            self.report.send(
                "sandbox_started",
                data={
                    "sandbox": sandbox.id,
                    "provider": self.provider.name,
                    "seconds": time.monotonic() - started,
                },
            )
            if self.plan.healthcheck is not None:
                problem = await unhealthy(sandbox, self.plan.healthcheck, None)
                if problem:
                    reason = f"[environment.healthcheck]: {problem}"
                    this.end("outage", ENVIRONMENT_UNHEALTHY, reason, "seed")
                    return None
        finally:
            this.seed_seconds = time.monotonic() - started
        return Stage(
            plan=self.plan,
            seed=seed,
            agent=self.agent,
            sandbox=sandbox,
            sandboxes=sandboxes,
            report=self.report,
            logs=self.logs / TURNS_FOLDER,
            image_user=sandbox.default_user,
            user_in_place=sandbox.default_user,
        )

    async def _run_turns(self, this: _Try, stage: Stage) -> None:
        """Run turn after turn until one ends the episode (spec 11)."""
        try:
            for plan in self.plan.turns:
                turn = await self._run_turn(this, stage, stage.draft(plan))
                if stops_episode(turn):
                    break
        finally:
            with anyio.CancelScope(shield=True):
                problem = await close_agent(self.agent)
            if problem:
                this.warnings.append(problem)
        self._end_by_turns(this, stage)

    async def _run_turn(self, this: _Try, stage: Stage, draft: TurnDraft) -> TurnResult:
        name = draft.plan.name
        self.report.send("turn_started", step=name)
        is_done = False
        try:
            turn = await run_turn(stage, draft)
            is_done = True
        except HarborError as error:
            draft.failed(error.kind, error.message)
            this.failed_phase = draft.phase
            raise
        finally:
            if not is_done:  # struck by an outage, the deadline or a cancellation
                this.failed_phase = draft.phase
                turn = draft.result("error")
            this.turns.append(turn)
            self.report.send("turn_ended", step=name, data=turn_to_plain(turn))
        return turn

    def _end_by_turns(self, this: _Try, stage: Stage) -> None:
        """Take the try's end from its last turn, where that ended it ungraded."""
        last = this.turns[-1]
        rolled = roll_up(this.turns, self.plan.reward_strategy)
        if rolled.status == "graded":
            return
        endings: Mapping[str, EpisodeStatus] = {
            "terminal": "terminal",
            "masked": "masked",
            "ungraded": "agent_failed",
        }
        this.policy_says_retry = stage.policy_says_retry
        reason = last.failure_reason or ""
        if self.plan.is_multi_step:
            reason = f"step {last.name}: {reason}"
        assert last.failure_kind is not None
        this.end(endings[rolled.status], last.failure_kind, reason, last.failed_phase)

    def _end_by_deadline(self, this: _Try) -> None:
        reason = "Episode timed out"
        if self.plan.deadline_enforced:
            reason = (
                f"the episode passed its deadline of {self.plan.deadline_seconds:g} s"
            )
        this.end("deadline", TASK_DEADLINE, reason, this.failed_phase or "seed")
        if this.turns and this.turns[-1].status == "error":
            this.turns[-1] = replace(
                this.turns[-1],
                failure_kind=TASK_DEADLINE,
                failure_reason=reason,
                failed_phase=this.failed_phase,
            )

    async def _clean_up(self, this: _Try, sandboxes: SandboxSet) -> None:
        started = time.monotonic()
        if self._keeps(this):
            this.kept = tuple(sandboxes.keep())
        this.warnings += await sandboxes.stop()
        this.cleanup_seconds = time.monotonic() - started

    def _keeps(self, this: _Try) -> bool:
        if self.keep == "never":
            return False
        if tries_again(
            this.status,
            number=this.number,
            retries=self.plan.retries,
            policy_says_retry=this.policy_says_retry,
        ):
            return False
        return self.keep == "always" or not self._is_perfect(this)

    def _is_perfect(self, this: _Try) -> bool:
        if this.status != "graded" or len(this.turns) < len(self.plan.turns):
            return False
        reward = roll_up(this.turns, self.plan.reward_strategy).reward
        gates_met = all(turn.min_reward_met is not False for turn in this.turns)
        return reward is not None and reward >= _FULL_REWARD and gates_met

    def _failed_attempt(self, this: _Try) -> FailedAttempt:
        assert this.failure_kind is not None
        return FailedAttempt(
            number=this.number,
            failure_kind=this.failure_kind,
            failure_reason=this.failure_reason or "",
            terminal=is_terminal(this.status, policy_says_retry=this.policy_says_retry),
            started_at=this.started_at,
            seconds=time.monotonic() - this.started,
            turns=tuple(this.turns),
        )

    def _report_failure(self, this: _Try, again: bool) -> None:
        self.report.send(
            "attempt_failed",
            phase=this.failed_phase,
            message=this.failure_reason or "",
            data={
                "try": this.number,
                "failure_kind": this.failure_kind,
                "will_retry": again,
            },
        )

    def _set_aside(self, attempt: FailedAttempt) -> FailedAttempt:
        """Move a failed try's logs out of the way of the next one."""
        turns = self.logs / TURNS_FOLDER
        aside = self.logs / f"try-{attempt.number}"
        if not turns.exists():
            return attempt
        shutil.rmtree(aside, ignore_errors=True)
        turns.rename(aside)
        moved = [replace(turn, logs=aside / turn.name) for turn in attempt.turns]
        return replace(attempt, turns=tuple(moved))

    def _result(
        self, this: _Try, first: _Try, failed: tuple[FailedAttempt, ...]
    ) -> EpisodeResult:
        plan = self.plan
        rolled = roll_up(this.turns, plan.reward_strategy)
        is_graded = this.status == "graded"
        last = this.turns[-1] if this.turns else None
        text = self.report.masker.text
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
            stopped_after_turn=stopped_after(this.turns, len(plan.turns))
            if is_graded or this.status in ("masked", "terminal", "agent_failed")
            else None,
            failure_kind=last.failure_kind
            if is_graded and last is not None
            else this.failure_kind,
            failure_reason=last.failure_reason
            if is_graded and last is not None
            else this.failure_reason,
            failed_phase=last.failed_phase
            if is_graded and last is not None
            else this.failed_phase,
            failed_attempts=failed,
            sandbox=self.provider.name,
            isolation=self.capabilities.isolation,
            started_at=first.started_at,
            seconds=time.monotonic() - first.started,
            durations=_durations(this),
            logs=self.logs,
            is_multi_step=plan.is_multi_step,
            validated=has_whole_solution(plan) if plan.agent == ORACLE else None,
            kept_sandboxes=this.kept,
            warnings=(*plan.warnings, *map(text, this.warnings)),
        )


def _durations(this: _Try) -> dict[str, float]:
    """Seconds of the last try: seed, each phase summed over turns, clean-up."""
    durations = {"seed": this.seed_seconds}
    for phase in ("prepare", "agent", "collect", "verify"):
        spent = [t.durations[phase] for t in this.turns if phase in t.durations]
        if spent:
            durations[phase] = math.fsum(spent)
    durations["cleanup"] = this.cleanup_seconds
    return durations
