"""What is known of a turn while it runs, so that an outage loses nothing of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pytest_harbor.agents.api import AgentResult
from pytest_harbor.episodes.result import Phase, TurnResult, TurnStatus
from pytest_harbor.reporter import Reporter
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.tasks.folder.plan_types import TurnPlan, VerifierMode
from pytest_harbor.verification.ctrf import InnerTest
from pytest_harbor.verification.verifier import Verification

_NO_VERIFICATION = Verification()


@dataclass
class TurnDraft:
    """A turn in the making; :meth:`result` turns it into plain data, masked."""

    plan: TurnPlan
    report: Reporter
    logs: Path
    keeps_session: bool = False
    """True when the session, and so the trajectory, is the whole episode's (spec 16)."""
    phase: Phase = "prepare"
    durations: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    agent: AgentResult = field(default_factory=AgentResult)
    agent_timed_out: bool = False
    failure_kind: str | None = None
    failure_reason: str | None = None
    failed_phase: Phase | None = None
    verifier_mode: VerifierMode | None = None
    verification: Verification = _NO_VERIFICATION

    @property
    def transcript(self) -> Path:
        """Where the turn's transcript is kept on the host."""
        return self.logs / "agent" / "trajectory.json"

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Time a phase and report it, however it ends."""
        self.phase = phase
        name = self.plan.name
        self.report.send("phase_started", step=name, phase=phase)
        started = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - started
            self.durations[phase] = seconds
            self.report.send(
                "phase_ended", step=name, phase=phase, data={"seconds": seconds}
            )

    def warn(self, message: str) -> None:
        """Note something that a person should hear of."""
        self.warnings.append(message)
        self.report.send("warning", step=self.plan.name, message=message)

    def failed(self, kind: str, reason: str) -> None:
        """Note what failed, in the phase that is going on."""
        self.failure_kind = kind
        self.failure_reason = reason
        self.failed_phase = self.phase

    def result(
        self,
        status: TurnStatus,
        *,
        reward: float | None = None,
        rewards: Mapping[str, float] | None = None,
        reward_file: Literal["json", "txt"] | None = None,
        min_reward_met: bool | None = None,
    ) -> TurnResult:
        """The turn as it ended."""
        masker = self.report.masker
        done = self.verification
        return TurnResult(
            name=self.plan.name,
            index=self.plan.index,
            status=status,
            reward=reward,
            verifier_rewards={
                masker.text(key): value for key, value in (rewards or {}).items()
            },
            reward_file=reward_file,
            headline_problem=masker.text(done.reading.headline_problem),
            verifier_mode=self.verifier_mode,
            tests_from=done.tests_from,
            failure_kind=_masked(masker, self.failure_kind),
            failure_reason=_masked(masker, self.failure_reason),
            failed_phase=self.failed_phase,
            min_reward=self.plan.min_reward,
            min_reward_met=min_reward_met,
            agent_timed_out=self.agent_timed_out,
            verifier_timed_out=done.timed_out,
            agent_exit_code=self.agent.exit_code,
            verifier_exit_code=done.exit_code,
            verifier_output_tail=masker.text(done.output_tail),
            inner_tests=tuple(_masked_test(masker, test) for test in done.inner_tests),
            warnings=tuple(map(masker.text, self.warnings)),
            durations=dict(self.durations),
            logs=self.logs,
            response=_masked(masker, self.agent.text),
            trajectory=self._trajectory(),
            input_tokens=self.agent.input_tokens,
            output_tokens=self.agent.output_tokens,
            cost_usd=self.agent.cost_usd,
            agent_steps=self._agent_steps(),
        )

    def _agent_steps(self) -> int | None:
        """Steps of the agent itself in its transcript, whatever shape that has.

        Context that it copied from an earlier transcript was counted there.
        """
        steps = (self.agent.trajectory or {}).get("steps")
        if not isinstance(steps, list):
            return None
        steps = [step for step in steps if isinstance(step, dict)]
        mine = [step for step in steps if step.get("source") == "agent"]
        return len([step for step in mine if not step.get("is_copied_context")])

    def _trajectory(self) -> Path | None:
        if self.keeps_session or self.agent.trajectory is None:
            return None
        return self.transcript if self.transcript.is_file() else None


def _masked(masker: Masker, text: str | None) -> str | None:
    return None if text is None else masker.text(text)


def _masked_test(masker: Masker, test: InnerTest) -> InnerTest:
    return InnerTest(*map(masker.text, (test.name, test.status, test.message)))
