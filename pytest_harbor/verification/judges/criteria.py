"""How criteria are shown to a judge, and what its numbers stand for (spec 8.1 to 8.4).

The criteria themselves are those of the task file (``tasks.steps.criteria``). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_harbor.tasks.steps.criteria import Criterion, Outcome, Scale


def aliases(criteria: Sequence[Criterion]) -> dict[str, Criterion]:
    """The names ``c1`` to ``cN`` under which a judge sees the criteria.

    An author's IDs may give away what is hoped for, and models copy short ones better.
    """
    return {f"c{number}": criterion for number, criterion in enumerate(criteria, 1)}


def scale_of(criterion: Criterion) -> Scale | None:
    """The range of raw scores that a criterion declares."""
    return criterion.outcomes if isinstance(criterion.outcomes, Scale) else None


def outcomes_of(criterion: Criterion) -> tuple[Outcome, ...]:
    """The scores that a criterion lists."""
    return criterion.outcomes if isinstance(criterion.outcomes, tuple) else ()


def bounds(criterion: Criterion) -> tuple[float, float]:
    """The lowest and the highest score that a judge may give in ``rubric_partial``."""
    scale = scale_of(criterion)
    return (0.0, 1.0) if scale is None else (scale.lowest, scale.highest)


def share(grade: float, criterion: Criterion) -> float:
    """A ``rubric_partial`` grade in [0, 1]: off its scale, or the nearest outcome.

    Half-way between two outcomes the lower one counts.
    """
    if (scale := scale_of(criterion)) is not None:
        return (grade - scale.lowest) / (scale.highest - scale.lowest)
    scores = sorted(outcome.score for outcome in outcomes_of(criterion))
    return min(scores, key=lambda score: abs(score - grade), default=grade)
