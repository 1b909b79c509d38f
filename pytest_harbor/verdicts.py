"""What an item and its steps get: the shape of a verdict, whoever gives it (design 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Outcome: TypeAlias = Literal["passed", "failed", "error", "skipped"]

TOLERANCE: Final = 1e-9


@dataclass(frozen=True)
class StepVerdict:
    """What one step gets. ``seconds`` is 0.0 for a step that was not run."""

    name: str
    index: int
    outcome: Outcome
    message: str
    reward: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What an item gets; the first line of ``message`` says all of it."""

    outcome: Outcome
    message: str
    steps: tuple[StepVerdict, ...] = ()


def reaches(score: float, threshold: float) -> bool:
    """Whether a score is good enough, but for the last digits of a sum."""
    return score >= threshold - TOLERANCE
