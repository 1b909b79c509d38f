"""Reads data into a model, and says in its author's words what was refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

Model = TypeVar("Model", bound=BaseModel)
KeyPath: TypeAlias = tuple[str | int, ...]

# Each round drops the keys that the model refused. Two are enough unless a dropped
# key uncovers another mistake; a bound keeps a strange file from costing more.
MAX_ROUNDS = 8


class Words(NamedTuple):
    """What a format calls its two kinds of containers."""

    table: str
    array: str


SCALARS = {
    "bool_type": "true or false",
    "float_type": "a number",
    "int_from_float": "an integer",
    "int_type": "an integer",
    "string_type": "a string",
}
TOML_WORDS = Words("a table", "an array")
JSON_WORDS = Words("an object", "a list")


def refusal(rule: str, text: str) -> PydanticCustomError:
    """The error of a value that the rule ``rule`` refuses, saying ``text``."""
    # A template with the text as its value: braces in a user's text stay what they are.
    return PydanticCustomError(rule, "{text}", {"text": text})


def read_model(
    raw: Mapping[str, Any],
    model: type[Model],
    report: Callable[[ErrorDetails, KeyPath, Any], None],
    *,
    lacks: Collection[str] = ("missing",),
    blanks: Mapping[str, Any] | None = None,
    context: object = None,
) -> tuple[Model | None, bool]:
    """The model of ``raw``, and whether anything of it was refused and left out.

    So that further checks can go on and everything is told at once, a refused key is
    reported, dropped and counts as unset. ``report`` gets pydantic's details, the
    place, and the data that the place is in. ``lacks`` are the error types that say
    what is missing: where something was dropped for what it said, they are follow-ups.
    ``blanks`` take the place of required keys, which cannot be left out. The model is
    ``None`` where nothing but dropping the whole would help.
    """
    left: Any = raw
    blanks = blanks or {}
    dropped: set[KeyPath] = set()
    for _ in range(MAX_ROUNDS):
        try:
            return model.model_validate(left, context=context), bool(dropped)
        except ValidationError as error:
            details = error.errors(include_url=False)
        if left is raw:
            left = _copied(raw)
        for detail in details:
            place = _place(detail, left)
            if is_lack(detail, lacks) and _is_above(place, dropped):
                continue
            report(detail, place, left)
        # Later entries of an array first, so that indexes stay right.
        for place in sorted(
            {_refused(detail, left, blanks) for detail in details},
            key=lambda path: [str(part).zfill(6) for part in path],
            reverse=True,
        ):
            _drop(left, place)
            dropped.add(place)
            if len(place) == 1 and place[0] in blanks:
                left[place[0]] = blanks[str(place[0])]
        if () in dropped and dict(left) == {}:
            break
    return None, True


def is_lack(detail: ErrorDetails, lacks: Collection[str]) -> bool:
    """True when a table lacks a key, not when a key has a bad value."""
    return detail["type"] in lacks and isinstance(detail["input"], dict)


def _is_above(table: KeyPath, dropped: set[KeyPath]) -> bool:
    return any(place[: len(table)] == table for place in dropped)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_copied(entry) for entry in value]
    return value


def _place(detail: ErrorDetails, raw: Any) -> KeyPath:
    """The error's place as far as the file has it."""
    place: list[str | int] = []
    for part in detail["loc"]:
        if _holds(raw, part):  # else a key that is missing, or a name of pydantic's own
            raw = raw[part]
            place.append(part)
    return tuple(place)


def _refused(detail: ErrorDetails, raw: Any, blanks: Mapping[str, Any]) -> KeyPath:
    """The place to drop; of a key that is missing and has a blank, its own."""
    if detail["type"] == "missing" and len(detail["loc"]) == 1:
        key = detail["loc"][0]
        return (key,) if key in blanks else ()
    return _place(detail, raw)


def _drop(raw: Any, place: KeyPath) -> None:
    if not place:
        raw.clear()
        return
    *tables, key = place
    for part in tables:
        if not _holds(raw, part):
            return
        raw = raw[part]
    if _holds(raw, key):
        del raw[key]


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def message(detail: ErrorDetails, words: Words) -> str:
    """What is wrong, and what was found instead."""
    kind, value = detail["type"], detail["input"]
    if "text" in (detail.get("ctx") or ()):  # a refusal of ours
        text = str(detail["msg"])
        # The rule's own text says what is due; what was found helps where it is short.
        needs_found = text.startswith("must be") and "not " not in text
        return f"{text}, not {shown(value, words)}" if needs_found else text
    if kind == "missing":
        return f"{detail['loc'][-1]} is missing"
    if kind == "literal_error":
        expected = detail["ctx"]["expected"].replace("'", '"')
        return f"{shown(value, words)} is not {expected}"
    if kind in ("value_error", "assertion_error"):  # of a project's own model
        return str(detail["ctx"]["error"])
    if due := _due(kind, words):
        return f"must be {due}, not {shown(value, words)}"
    return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _due(kind: str, words: Words) -> str | None:
    """What pydantic's error type asks for."""
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return words.table
    return words.array if kind == "tuple_type" else SCALARS.get(kind)


def shown(value: object, words: Words) -> str:
    """A value with its type, cut to a readable length."""
    match value:
        case None:
            text = "null"
        case bool():
            text = "true" if value else "false"
        case str():
            text = f"the string {value[:60]!r}"
        case int() | float():
            text = f"the number {value}"
        case dict():
            text = words.table
        case list():
            text = words.array
        case _:
            text = f"the date or time {value}"
    return text
