"""What the engines report while they run: plain data with a JSON round trip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

EventKind: TypeAlias = Literal[
    "episode_started",
    "attempt_started",  # a (re)try from seed begins; data: try (1-based)
    "sandbox_progress",  # a pull or a build goes on; message
    "sandbox_started",  # data: sandbox, provider, seconds
    "turn_started",
    "phase_started",  # phase: prepare | agent | collect | verify
    "phase_ended",  # data: seconds
    "turn_ended",  # data: the TurnResult as plain data
    "attempt_failed",  # an outage or deadline; data: failure_kind, will_retry
    "warning",
    "episode_ended",  # data: the EpisodeResult as plain data
    # Step tasks, beside "warning":
    "run_started",  # data: steps, the IDs in file order
    "step_started",  # data: type, execution (1-based; 2 and on after a retry)
    "deployed",  # data: what, instance, sandbox, provider, seconds
    "step_ended",  # data: the StepResult as plain data
    "run_ended",  # data: the StepRunResult as plain data
]

if TYPE_CHECKING:
    Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
else:
    Json = Any  # pydantic cannot follow an alias that contains itself


@dataclass(frozen=True)
class Event:
    """One thing that happened in an episode, or in a run of a step task.

    ``episode`` is the episode's ID (task, agent and attempt) or the run's, ``step`` the
    step's name where a turn or a step is concerned, ``at`` seconds since the epoch, ``data`` only what
    survives JSON, secrets masked.
    """

    kind: EventKind
    episode: str
    at: float
    step: str | None = None
    phase: str | None = None
    message: str = ""
    data: Mapping[str, Json] = field(default_factory=dict)


Observer: TypeAlias = Callable[[Event], None]
"""Called in the engine's event loop, once per event, in order. Must not block."""
