"""What a judge is asked to answer, and what it answered (spec, task steps, 8.3).

A judge is a model: it may answer prose, leave a criterion out, or grade one twice.
Nothing of that is a score. :func:`read_answer` says what is wrong, :func:`correction` tells
the judge, and after the last attempt the caller raises. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pytest_harbor.protocols.excerpts import MAX_LEVELS, is_too_deep
from pytest_harbor.tasks.steps.criteria import Criterion, RubricFormat
from pytest_harbor.verification.judges.criteria import aliases, bounds

if TYPE_CHECKING:
    from pytest_harbor.events import Json

MAX_ATTEMPTS: Final = 3
"""Calls of a judge until its answer counts as unreadable."""
MAX_ANSWER_CHARACTERS: Final = 1024 * 1024
PROBLEMS_SHOWN: Final = 10

_MAX_DIGITS: Final = 300
_MAX_STARTS: Final = 500
"""Braces in prose that are tried: each may cost a scan of all the text."""


def _integer(digits: str) -> int | float:
    # Python reads no integer of more than 4300 digits, and no float of more than 308.
    return int(digits) if len(digits) <= _MAX_DIGITS else math.inf


_DECODER = json.JSONDecoder(parse_int=_integer)


@dataclass(frozen=True)
class Grade:
    """What a judge said of one criterion, as it said it."""

    score: float
    justification: str = ""
    keys: Mapping[str, Json] = field(default_factory=dict)
    """Everything the judge wrote, its ``id`` apart."""


@dataclass(frozen=True)
class Answer:
    """A judge's answer: one grade per criterion ID, or what is wrong with it."""

    grades: Mapping[str, Grade] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def is_valid(self) -> bool:
        """True when each criterion has exactly one usable grade."""
        return not self.problems


class _Unreadable(ValueError):
    """Internal: no object with ``results`` in the answer."""


def answer_schema(
    criteria: Sequence[Criterion], output_format: RubricFormat
) -> dict[str, Any]:
    """JSON schema of the answer, in the subset that strict endpoints take."""
    score: dict[str, Any] = {"type": "number"}
    if output_format == "rubric_binary":
        score = {"type": "integer", "enum": [0, 1]}
    row = {
        "type": "object",
        # The reason before the number: a model that writes in order decides after it.
        "properties": {
            "id": {"type": "string", "enum": list(aliases(criteria))},
            "justification": {"type": "string"},
            "score": score,
        },
        "required": ["id", "justification", "score"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"results": {"type": "array", "items": row}},
        "required": ["results"],
        "additionalProperties": False,
    }


def read_answer(
    answer: str | Mapping[str, Any],
    criteria: Sequence[Criterion],
    output_format: RubricFormat,
) -> Answer:
    """Read a judge's text, or the object it gave as structured output.

    A Markdown fence and prose around one object are taken off, ``true`` and ``false`` are
    read as 1 and 0; anything else that is not as asked is a problem.
    """
    try:
        rows = _rows(answer)
    except _Unreadable as error:
        return Answer(problems=(str(error),))
    shown = aliases(criteria)
    grades: dict[str, Grade] = {}
    problems: list[str] = []
    for position, row in enumerate(rows, 1):
        alias = row.get("id") if isinstance(row, Mapping) else None
        criterion = shown.get(alias) if isinstance(alias, str) else None
        if criterion is None:
            problems.append(_unknown(row, position, shown))
        elif criterion.id in grades:
            problems.append(f"{alias} is graded twice")
        elif not _is_json(row):
            grades[criterion.id] = Grade(math.nan)
            problems.append(f"{alias} holds a number that is not finite")
        else:
            grade = _grade(row)
            grades[criterion.id] = grade
            if problem := score_problem(grade.score, criterion, output_format):
                problems.append(f"{alias}: score {_shown(row.get('score'))} {problem}")
    problems += [
        f"{alias} is not graded"
        for alias, criterion in shown.items()
        if criterion.id not in grades
    ]
    return Answer(problems=tuple(problems)) if problems else Answer(grades)


def score_problem(
    score: float, criterion: Criterion, output_format: RubricFormat
) -> str:
    """Why a judge cannot have meant ``score``, or an empty string."""
    if math.isnan(score):
        return "is no number"
    if output_format == "rubric_binary":
        return "" if score in (0, 1) else "is neither 0 nor 1"
    low, high = bounds(criterion)
    return "" if low <= score <= high else f"is not from {low:g} to {high:g}"


def correction(problems: Sequence[str]) -> str:
    """The message that asks a judge to answer again."""
    listed = "\n".join(f"- {problem}" for problem in problems[:PROBLEMS_SHOWN])
    left_out = len(problems) - PROBLEMS_SHOWN
    more = f"\n- and {left_out} more" if left_out > 0 else ""
    return (
        "Your answer could not be used:\n"
        f"{listed}{more}\n"
        "Answer again with the complete JSON object and nothing else: "
        '{"results": [{"id": ..., "justification": ..., "score": ...}, ...]}, with '
        "exactly one entry for each criterion."
    )


def _rows(answer: str | Mapping[str, Any]) -> Sequence[Any]:
    data = _object(answer) if isinstance(answer, str) else answer
    if is_too_deep(data):
        raise _Unreadable(f"it is nested in more than {MAX_LEVELS} levels")
    rows = data.get("results")
    if not isinstance(rows, list):
        raise _Unreadable("there is no list 'results' in it")
    return rows


def _object(text: str) -> Mapping[str, Any]:
    if len(text) > MAX_ANSWER_CHARACTERS:
        raise _Unreadable(f"it is longer than {MAX_ANSWER_CHARACTERS} characters")
    text = text.strip()
    if not text:
        raise _Unreadable("it is empty")
    try:
        data = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return _object_in_prose(text)
    if not isinstance(data, Mapping):
        raise _Unreadable("it is JSON, but no object")
    return data


def _object_in_prose(text: str) -> Mapping[str, Any]:
    """The one object with ``results`` in a text, or in a Markdown fence.

    Two of them are a problem: one may be a quotation of the reply that is graded.
    """
    found: list[Mapping[str, Any]] = []
    position, starts = text.find("{"), 0
    while position >= 0 and starts < _MAX_STARTS:
        starts += 1
        try:
            data, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            if "results" in data:
                found.append(data)
        position = text.find("{", end)
    if len(found) > 1:
        raise _Unreadable("it holds more than one object with 'results'")
    if not found:
        raise _Unreadable("it is not JSON")
    return found[0]


def _is_json(row: Mapping[str, Any]) -> bool:
    try:
        json.dumps(row, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True


def _grade(row: Mapping[str, Any]) -> Grade:
    score = row.get("score")
    # Python's booleans are integers, which is how true and false are 1 and 0.
    number = float(score) if isinstance(score, (int, float)) else math.nan
    justification = row.get("justification")
    keys = {key: value for key, value in row.items() if key != "id"}
    text = justification if isinstance(justification, str) else ""
    return Grade(number, text, keys)


def _unknown(row: object, position: int, shown: Mapping[str, Criterion]) -> str:
    if not isinstance(row, Mapping):
        return f"entry {position} is no object"
    if "id" not in row:
        return f"entry {position} has no id"
    names = "c1" if len(shown) == 1 else f"c1 to c{len(shown)}"
    return f"there is no criterion {_shown(row['id'])}, only {names}"


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:40] + "..."
