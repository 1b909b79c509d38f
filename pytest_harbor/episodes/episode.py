"""Running an episode: seed, turns, roll-up, and everything cleaned up after it.

Infrastructure never becomes a score: what goes wrong outside the agent's work ends a try
without one, and the episode is tried again where spec 17 and 19.5 allow it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from pytest_harbor.agents.api import Agent
from pytest_harbor.agents.python_agent import close_agent, describe
from pytest_harbor.episodes.collect import named_sidecars
from pytest_harbor.episodes.draft import TurnDraft
from pytest_harbor.episodes.gates import stops_episode
from pytest_harbor.episodes.plain_data import result_to_plain, turn_to_plain
from pytest_harbor.episodes.prepare import unhealthy
from pytest_harbor.episodes.result import (
    EpisodeResult,
    EpisodeStatus,
    FailedAttempt,
    TurnResult,
)
from pytest_harbor.episodes.retry import tries_again
from pytest_harbor.episodes.rollup import roll_up
from pytest_harbor.episodes.sandbox_set import SandboxSet
from pytest_harbor.episodes.seed import Seed, check_provider, make_seed, refuse
from pytest_harbor.episodes.sessions import close_after_the_end, keep_trajectory
from pytest_harbor.episodes.stage import Stage
from pytest_harbor.episodes.tries import (
    TURNS_FOLDER,
    Try,
    result_of,
    set_aside,
)
from pytest_harbor.episodes.turn import run_turn
from pytest_harbor.errors import (
    CANCELLED,
    ENVIRONMENT_UNHEALTHY,
    INTERNAL_ERROR,
    SANDBOX_UNAVAILABLE,
    TASK_DEADLINE,
    HarborError,
    SandboxError,
    SandboxStartFailed,
    SandboxUnavailable,
    TaskRefused,
    UnsupportedByProvider,
)
from pytest_harbor.events import Observer
from pytest_harbor.reporter import Reporter
from pytest_harbor.sandboxes.api import Capabilities, Provider, Sandbox
from pytest_harbor.settings import Keep
from pytest_harbor.tasks.folder.plan_types import EpisodePlan
from pytest_harbor.tasks.folder.seed import changed_folder
from pytest_harbor.verdicts import reaches


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
class _Episode:
    """One call of :func:`run`."""

    plan: EpisodePlan
    provider: Provider
    agent: Agent
    report: Reporter
    logs: Path
    keep: Keep
    debug: bool
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(available=False)
    )

    async def run(self, environ: Mapping[str, str]) -> EpisodeResult:
        started_at, started = time.time(), time.monotonic()
        self.report.send("episode_started")
        failed: list[FailedAttempt] = []
        number = 1
        while True:
            this = await self._try(number, environ)
            if this.status not in ("graded", "masked"):
                failed.append(this.as_failed())
            again = self._tries_again(this)
            if this.failure_kind is not None and this.status not in (
                "graded",
                "masked",
            ):
                self._report_failure(this, again)
            if not again:
                break
            failed[-1] = set_aside(failed[-1], self.logs)
            number += 1
        keep = partial(keep_trajectory, logs=self.logs, masker=self.report.masker)
        trajectory = await anyio.to_thread.run_sync(keep, this, self.plan)
        result = replace(
            result_of(this, self.plan, masker=self.report.masker),
            trajectory=trajectory,
            failed_attempts=tuple(failed),
            sandbox=self.provider.name,
            isolation=self.capabilities.isolation,
            started_at=started_at,
            seconds=time.monotonic() - started,
            logs=self.logs,
        )
        self.report.send("episode_ended", data=result_to_plain(result))
        return result

    async def _try(self, number: int, environ: Mapping[str, str]) -> Try:
        """One try from seed to clean-up; its failures are in what it returns."""
        this = Try(number)
        self.report.send("attempt_started", data={"try": number})
        try:
            seed = await self._seed(environ)
            this.warnings += seed.warnings
            await self._run_in_sandbox(this, seed)
        except (TaskRefused, UnsupportedByProvider) as error:
            this.end("refused", error.kind, error.message, "seed")
        except SandboxUnavailable as error:
            this.end("unavailable", SANDBOX_UNAVAILABLE, error.message, "seed")
        except anyio.get_cancelled_exc_class():
            this.end("cancelled", CANCELLED, "cancelled", None)
            self._report_failure(this, again=False)
            raise
        this.mask(self.report.masker)
        return this

    async def _seed(self, environ: Mapping[str, str]) -> Seed:
        seed = make_seed(self.plan, environ, self.agent)
        self.report.masker = seed.masker
        self.capabilities = await self.provider.probe()
        if not self.capabilities.available:
            raise SandboxUnavailable(self.capabilities.reason)
        refuse(
            self.plan,
            seed,
            capabilities=self.capabilities,
            can_continue=bool(getattr(self.agent, "can_continue", False)),
            environ=environ,
            provider=self.provider.name,
        )
        check_provider(self.provider, self.plan, seed)
        await self._refuse_changed_folder()
        return seed

    async def _refuse_changed_folder(self) -> None:
        if self.logs.resolve().is_relative_to(self.plan.folder.resolve()):
            return  # our own logs change it
        problem = await anyio.to_thread.run_sync(changed_folder, self.plan)
        if problem is not None:
            raise TaskRefused(str(problem), rule=problem.rule)

    async def _run_in_sandbox(self, this: Try, seed: Seed) -> None:
        sandboxes = SandboxSet(
            self.provider,
            self.plan.task_id,
            keeps=self.keep != "never" and self.capabilities.concurrent,
            tell=lambda line: self.report.send("sandbox_progress", message=line),
        )
        try:
            with anyio.CancelScope() as scope:
                await self._run_until(this, seed, sandboxes, scope)
            if scope.cancelled_caught:
                self._end_by_deadline(this)
        finally:
            await self._clean_up(this, sandboxes)

    async def _run_until(
        self, this: Try, seed: Seed, sandboxes: SandboxSet, scope: anyio.CancelScope
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
            is_final = isinstance(error, SandboxStartFailed) and error.is_final
            status: EpisodeStatus = "terminal" if is_final else "outage"
            this.end(status, error.kind, error.message, phase)
        except OSError as error:
            if self.debug:
                raise
            reason = f"on the host: {describe(error)}"
            this.end("outage", INTERNAL_ERROR, reason, this.failed_phase or "seed")

    async def _start(
        self, this: Try, seed: Seed, sandboxes: SandboxSet
    ) -> Stage | None:
        """Bring the sandbox up; ``None`` when its health check never passes."""
        started = time.monotonic()
        try:
            # An image that is not to be had must not cost the work of an agent.
            for environment in filter(None, seed.verifier_environments):
                await sandboxes.prepare(environment)
            sandbox = await sandboxes.start(seed.environment)
            this.warnings += sandbox.warnings
            self._refuse_missing_services(sandbox)
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
            network_in_place=seed.environment.own_network,
        )

    def _refuse_missing_services(self, sandbox: Sandbox) -> None:
        """Refuse a sidecar that is named and does not exist (X26).

        The load refuses what it can tell; Compose itself knows the file best.
        """
        for turn in self.plan.turns:
            for name in named_sidecars(turn):
                if name not in sandbox.services:
                    raise TaskRefused(
                        f"service '{name}' is not defined in "
                        "environment/docker-compose.yaml, but a collect hook or an "
                        "artifact names it",
                        rule="X26",
                    )

    async def _run_turns(self, this: Try, stage: Stage) -> None:
        """Run turn after turn until one ends the episode (spec 11)."""
        try:
            for plan in self.plan.turns:
                turn = await self._run_turn(this, stage, stage.draft(plan))
                if stops_episode(turn):
                    break
            await close_after_the_end(stage, this)
        finally:
            with anyio.CancelScope(shield=True):
                problem = await close_agent(self.agent)
            if problem:
                this.warnings.append(problem)
        self._end_by_turns(this, stage)

    async def _run_turn(self, this: Try, stage: Stage, draft: TurnDraft) -> TurnResult:
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
            if draft.agent.trajectory is not None:
                this.trajectories.append(draft.agent.trajectory)
            self.report.send("turn_ended", step=name, data=turn_to_plain(turn))
        return turn

    def _end_by_turns(self, this: Try, stage: Stage) -> None:
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

    def _end_by_deadline(self, this: Try) -> None:
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

    async def _clean_up(self, this: Try, sandboxes: SandboxSet) -> None:
        started = time.monotonic()
        if self._keeps(this):
            ways, problems = await sandboxes.keep()
            this.kept = tuple(ways)
            this.warnings += problems
        this.warnings += await sandboxes.stop()
        this.warnings += sandboxes.unenforced
        this.cleanup_seconds = time.monotonic() - started

    def _keeps(self, this: Try) -> bool:
        if self.keep == "never":
            return False
        if self._tries_again(this):
            return False
        return self.keep == "always" or not self._is_perfect(this)

    def _is_perfect(self, this: Try) -> bool:
        if this.status != "graded" or len(this.turns) < len(self.plan.turns):
            return False
        reward = roll_up(this.turns, self.plan.reward_strategy).reward
        gates_met = all(turn.min_reward_met is not False for turn in this.turns)
        return reward is not None and reaches(reward, 1.0) and gates_met

    def _tries_again(self, this: Try) -> bool:
        return tries_again(
            this.status,
            number=this.number,
            retries=self.plan.retries,
            policy_says_retry=this.policy_says_retry,
        )

    def _report_failure(self, this: Try, again: bool) -> None:
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
