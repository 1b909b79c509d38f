"""From a judge's grades to rows and one score (spec, task steps, 8.4 to 8.6). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pytest_harbor.tasks.steps.criteria import (
    Criterion,
    RubricFormat,
    ScoreAggregator,
)
from pytest_harbor.verdicts import reaches
from pytest_harbor.verification.judges.answer import Grade
from pytest_harbor.verification.judges.criteria import share

if TYPE_CHECKING:
    from pytest_harbor.events import Json

PROMPT_ERROR: Final = "prompt_error"
"""ID of the one row that a reply with an error gets."""


def graded_rows(
    criteria: Sequence[Criterion],
    grades: Mapping[str, Grade],
    output_format: RubricFormat,
) -> list[dict[str, Json]]:
    """One row per criterion, in the order of the task.

    A row has the author's keys and the judge's; where both name one, the author's stays, but
    for what the judge decides.
    """
    return [
        _row(criterion, grades[criterion.id], output_format) for criterion in criteria
    ]


def prompt_error_entry(message: str, output_format: RubricFormat) -> dict[str, Json]:
    """The entry of a reply that failed: nothing to grade, so no judge (8.6)."""
    row: dict[str, Json] = {
        "id": PROMPT_ERROR,
        "score": 0,
        "result": False,
        "message": message,
    }
    return {"format": output_format, "results": [row], "score": 0}


def aggregate(rows: Sequence[Mapping[str, Any]], aggregator: ScoreAggregator) -> float:
    """The score of a verifier, in [0, 1]; 0 without rows.

    Rows have ``result``, and ``score`` and ``weight`` (1 if absent) for a weighted average,
    in which a negative weight takes off what is present and must not be.
    """
    if not rows:
        return 0.0
    if aggregator == "all_pass":
        return float(all(row["result"] for row in rows))
    if aggregator == "any_pass":
        return float(any(row["result"] for row in rows))
    return _weighted_average(rows)


def _row(
    criterion: Criterion, grade: Grade, output_format: RubricFormat
) -> dict[str, Json]:
    written = criterion.model_dump(mode="json", exclude_unset=True)
    row: dict[str, Json] = {**grade.keys, "weight": criterion.weight, **written}
    row.pop("raw_score", None)
    row["justification"] = grade.justification
    if output_format == "rubric_binary":
        row["score"] = int(grade.score)
        row["result"] = grade.score == 1
        return row
    score = share(grade.score, criterion)
    row["score"] = score
    if criterion.outcomes is not None:
        row["raw_score"] = grade.score
    row["result"] = reaches(score, criterion.pass_threshold)
    return row


def _weighted_average(rows: Sequence[Mapping[str, Any]]) -> float:
    earned = possible = 0.0
    for row in rows:
        weight = float(row.get("weight", 1.0))
        score = float(row.get("score", row["result"]))
        if weight > 0:
            earned += score * weight
            possible += weight
        else:
            earned -= (1 - score) * -weight
    if possible == 0:
        return 0.0
    return min(1.0, max(0.0, earned / possible))
