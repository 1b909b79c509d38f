"""Grade: ask a judge until its answer can be read, at most three times (spec 8.3)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from pytest_harbor.errors import HarborError, JudgeError
from pytest_harbor.tasks.steps.criteria import (
    Criterion,
    RubricFormat,
    ScoreAggregator,
)
from pytest_harbor.verification.judges.answer import (
    MAX_ATTEMPTS,
    answer_schema,
    correction,
    read_answer,
)
from pytest_harbor.verification.judges.prompt import Evidence, judge_prompt
from pytest_harbor.verification.judges.scores import aggregate, graded_rows

if TYPE_CHECKING:
    from pytest_harbor.events import Json
    from pytest_harbor.verification.judges.api import Judge

DEFAULT_TIMEOUT_SECONDS: Final = 1000.0
_GRACE_SECONDS: Final = 5.0
"""A judge keeps its limit itself, and cancels its A2A task then; this is for others."""
_ANSWER_SHOWN: Final = 500


@dataclass(frozen=True)
class Grading:
    """What a judge's grades come to."""

    rows: Sequence[dict[str, Json]]
    """One per criterion, with ``result``, ``score`` and ``justification``."""
    score: float
    retries: int = 0
    """Answers that could not be used before the one that counts."""


@dataclass(frozen=True)
class Exchange:
    """One question to a judge and what it answered."""

    question: str
    answer: str


async def grade(
    judge: Judge,
    evidence: Evidence,
    criteria: Sequence[Criterion],
    *,
    output_format: RubricFormat = "rubric_binary",
    score_aggregator: ScoreAggregator = "all_pass",
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    said: list[Exchange] | None = None,
) -> Grading:
    """Let ``judge`` grade. ``timeout_seconds`` is per answer.

    ``said`` gets each exchange as it happens, so that the caller has them after a failure.

    Raises:
        JudgeError: no answer, or none that can be used in three attempts. Never a score.
        HarborError: what else the judge raises (it cannot be reached, ...).
    """
    schema = answer_schema(criteria, output_format)
    text = judge_prompt(evidence, criteria, output_format)
    said = [] if said is None else said
    problems: Sequence[str] = ()
    for attempt in range(MAX_ATTEMPTS):
        answer = await _ask(judge, text, schema, timeout_seconds)
        said.append(Exchange(text, _as_text(answer)))
        read = read_answer(answer, criteria, output_format)
        if read.is_valid:
            rows = graded_rows(criteria, read.grades, output_format)
            return Grading(rows, aggregate(rows, score_aggregator), retries=attempt)
        problems = read.problems
        text = correction(problems)
    answers = tuple(exchange.answer for exchange in said[-MAX_ATTEMPTS:])
    raise JudgeError(
        f"the judge gave no grades in {MAX_ATTEMPTS} attempts; of the last answer: "
        f"{'; '.join(problems[:3])}\nit was: {answers[-1][:_ANSWER_SHOWN]}",
        answers,
    )


async def _ask(
    judge: Judge, text: str, schema: Mapping[str, Any], timeout_seconds: float
) -> str | Mapping[str, Any]:
    try:
        with anyio.move_on_after(timeout_seconds + _GRACE_SECONDS):
            return await judge.ask(text, schema, timeout_seconds=timeout_seconds)
    except HarborError:
        raise
    except Exception as error:
        raise JudgeError(
            f"the judge failed: {type(error).__name__}: {error}"
        ) from error
    raise JudgeError(f"the judge did not answer in {timeout_seconds:g} s")


def _as_text(answer: str | Mapping[str, Any]) -> str:
    if isinstance(answer, str):
        return answer
    return json.dumps(answer, ensure_ascii=False, default=str)
