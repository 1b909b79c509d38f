"""What an episode came to: plain data with a JSON round trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pytest_harbor.tasks.folder.plan_types import VerifierMode
from pytest_harbor.verification.ctrf import InnerTest

Phase: TypeAlias = Literal["seed", "prepare", "agent", "collect", "verify"]
TurnStatus: TypeAlias = Literal[
    "graded",  # a valid reward file
    "no_reward",  # the verifier ran and left no valid reward file: measured 0
    "prepare_failed",  # setup.sh, workdir merge or health check (spec 12.2)
    "counted_as_zero",  # the outcome policy counts the agent's failure as 0
    "agent_failed",  # the outcome policy says fail or retry: ungraded
    "masked",  # the verifier could not start, for no fault of the agent
    "error",  # an outage or the deadline struck in this turn: ungraded
]


@dataclass(frozen=True)
class TurnResult:
    """One started turn (spec 19.3). Times in seconds."""

    name: str
    index: int
    status: TurnStatus
    reward: float | None = None
    """The turn's headline reward; 0.0 when measured as 0, ``None`` when ungraded."""
    verifier_rewards: Mapping[str, float] = field(default_factory=dict)
    reward_file: Literal["json", "txt"] | None = None
    headline_problem: str = ""
    """Why a valid reward file counts as 0.0: it has no headline key."""
    verifier_mode: VerifierMode | None = None
    """``None`` when the turn never reached verification."""
    tests_from: Literal["folder", "image"] | None = None
    failure_kind: str | None = None
    failure_reason: str | None = None
    failed_phase: Phase | None = None
    min_reward: float | Mapping[str, float] | None = None
    min_reward_met: bool | None = None
    agent_timed_out: bool = False
    verifier_timed_out: bool = False
    agent_exit_code: int | None = None
    verifier_exit_code: int | None = None
    verifier_output_tail: str = ""
    """The last 30 lines, secrets masked."""
    inner_tests: tuple[InnerTest, ...] = ()
    warnings: tuple[str, ...] = ()
    durations: Mapping[str, float] = field(default_factory=dict)
    """Seconds per phase: prepare, agent, collect, verify."""
    logs: Path | None = None
    """The turn's folder on the host: ``agent/`` and ``verifier/``."""
    response: str | None = None
    trajectory: Path | None = None
    """The turn's transcript on the host; ``None`` under ``turn_sessions: continue``,
    where the episode has one (spec 16)."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    """US dollars."""
    agent_steps: int | None = None
    """Steps of the agent itself in its transcript."""

    @property
    def ran_agent(self) -> bool:
        """True when the turn got as far as running its agent."""
        return "agent" in self.durations

    @property
    def seconds(self) -> float:
        """The whole turn's time."""
        return sum(self.durations.values())

    def artifact(self, path: str) -> Path:
        """Host path of a collected artifact, relative to ``artifacts/``.

        ``artifact("app/report.json")`` is where ``/app/report.json`` was put.
        """
        if self.logs is None:
            raise FileNotFoundError(f"turn {self.name!r} has no logs folder")
        return self.logs / "verifier" / "artifacts" / path


EpisodeStatus: TypeAlias = Literal[
    "graded",
    "terminal",  # step 1's preparation, or a start that fails always: never retried
    "refused",  # at seed
    "unavailable",  # the sandbox kind is not there
    "agent_failed",  # policy: fail, or retry used up
    "masked",
    "outage",
    "deadline",
    "cancelled",
]


@dataclass(frozen=True)
class FailedAttempt:
    """One try of the episode that was followed by another, or was the last."""

    number: int
    """1-based."""
    failure_kind: str
    failure_reason: str
    terminal: bool
    """True when nothing may retry it."""
    started_at: float
    seconds: float
    turns: tuple[TurnResult, ...] = ()


@dataclass(frozen=True)
class EpisodeResult:
    """One attempt of one agent at one task (spec 19.3, 19.4)."""

    task_id: str
    agent: str
    model: str | None
    attempt: int
    status: EpisodeStatus
    declared_steps: tuple[str, ...]
    digest: str
    reward: float | None = None
    """Rolled up; ``None`` unless graded."""
    verifier_rewards: Mapping[str, float] = field(default_factory=dict)
    verifier_mode: Literal["shared", "separate", "mixed"] | None = None
    turns: tuple[TurnResult, ...] = ()
    """The started turns, in order."""
    stopped_after_turn: str | None = None
    failure_kind: str | None = None
    failure_reason: str | None = None
    failed_phase: Phase | None = None
    failed_attempts: tuple[FailedAttempt, ...] = ()
    sandbox: str | None = None
    """The provider's name."""
    isolation: str = ""
    started_at: float = 0.0
    """Seconds since the epoch."""
    seconds: float = 0.0
    durations: Mapping[str, float] = field(default_factory=dict)
    """Seconds: seed, each phase summed over turns, cleanup."""
    logs: Path | None = None
    trajectory: Path | None = None
    """The transcript of the episode's session on the host; ``None`` when it had more
    than one, whose turns have theirs (spec 16)."""
    is_multi_step: bool = False
    validated: bool | None = None
    """Oracle only: every step had a ``solve.sh`` (spec 13)."""
    kept_sandboxes: tuple[str, ...] = ()
    """How to enter what ``--harbor-keep`` left up."""
    warnings: tuple[str, ...] = ()

    @property
    def mask_sample(self) -> bool:
        """True when a result exists that must not be counted."""
        return self.status == "masked"

    @property
    def response(self) -> str | None:
        """Final message of the latest turn that got as far as running its agent."""
        ran = [turn for turn in self.turns if turn.ran_agent]
        return ran[-1].response if ran else None

    @property
    def is_graded(self) -> bool:
        """True when ``reward`` is a score."""
        return self.status == "graded"
