"""What a run of a step task came to: plain data with a JSON round trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from pytest_harbor.events import Json
from pytest_harbor.graphs.context import RunContext
from pytest_harbor.graphs.outcome import Outcome

if TYPE_CHECKING:
    from pydantic import TypeAdapter

StepStatus: TypeAlias = Literal[
    "passed",
    "failed",  # fatal: nothing further was started
    "tolerated",  # failed, with fail_task_on_error: false
    "retried",  # failed; the span that it names runs again
    "cancelled",
    "not_run",
]


@dataclass(frozen=True)
class StepResult:
    """One step, as its last execution ended. Times in seconds."""

    id: str
    type: str
    position: int
    """Place in the file, from 1."""
    status: StepStatus
    error: str = ""
    """The failure's text, secrets masked."""
    error_type: str | None = None
    """Name of the exception's class."""
    failure_kind: str | None = None
    is_infrastructure: bool = False
    """True when neither the agent nor the task is at fault."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Those that it wrote, by verifier."""
    warnings: tuple[str, ...] = ()
    executions: int = 0
    started_at: float = 0.0
    """Since the epoch; 0 for one that was never started."""
    seconds: float = 0.0

    @property
    def ended_at(self) -> float:
        """When it ended, since the epoch."""
        return self.started_at + self.seconds


@dataclass(frozen=True)
class StepRunResult:
    """One run of one step task (spec 2.4). Times in seconds."""

    task_id: str
    instance_id: str
    outcome: Outcome
    """With the threshold 1.0; compare ``scores`` for another."""
    steps: tuple[StepResult, ...]
    """All of the file, in its order."""
    context: RunContext
    """A copy, secrets masked."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """The reward object: each verifier's score."""
    reward: float | None = None
    """The scalar; ``None`` when no verifier gave a score."""
    failure_kind: str | None = None
    failure_reason: str | None = None
    is_infrastructure: bool = False
    started_at: float = 0.0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    """Of the run itself; a step's are with the step."""
    sandboxes: tuple[str, ...] = ()
    """Names of the providers that were used, sorted."""
    model: str | None = None
    logs: Path | None = None

    def step(self, step_id: str) -> StepResult:
        """The step of that ID. Raises KeyError."""
        for step in self.steps:
            if step.id == step_id:
                return step
        raise KeyError(step_id)

    @property
    def failed_steps(self) -> tuple[StepResult, ...]:
        """The steps that failed and were not recovered, tolerated ones included."""
        return tuple(
            step for step in self.steps if step.status in ("failed", "tolerated")
        )


def step_to_plain(step: StepResult) -> dict[str, Json]:
    """A step as what JSON can hold; :func:`step_from_plain` reads it."""
    return cast("dict[str, Json]", _steps().dump_python(step, mode="json"))


def step_from_plain(data: Mapping[str, Any]) -> StepResult:
    """The step that :func:`step_to_plain` wrote.

    Raises:
        pydantic.ValidationError: it is something else.
    """
    return _steps().validate_python(data)


def run_to_plain(result: StepRunResult) -> dict[str, Json]:
    """A run as what JSON can hold; :func:`run_from_plain` reads it."""
    return cast("dict[str, Json]", _runs().dump_python(result, mode="json"))


def run_from_plain(data: Mapping[str, Any]) -> StepRunResult:
    """The run that :func:`run_to_plain` wrote.

    Raises:
        pydantic.ValidationError: it is something else.
    """
    return _runs().validate_python(data)


@cache
def _steps() -> TypeAdapter[StepResult]:
    from pydantic import TypeAdapter

    return TypeAdapter(StepResult)


@cache
def _runs() -> TypeAdapter[StepRunResult]:
    from pydantic import TypeAdapter

    return TypeAdapter(StepRunResult)
