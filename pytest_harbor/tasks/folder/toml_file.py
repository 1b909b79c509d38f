"""Reads a TOML file into a model, with messages that its author understands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, TypeVar

import tomli
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pytest_harbor.tasks.folder.findings import Findings
from pytest_harbor.tasks.folder.keys import key_name

Model = TypeVar("Model", bound=BaseModel)
KeyPath: TypeAlias = tuple[str | int, ...]

# pydantic's error types in TOML's words.
EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "float_type": "a number",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "model_attributes_type": "a table",
    "model_type": "a table",
    "string_type": "a string",
    "tuple_type": "an array",
}

# Keys whose every mistake has a refusal of its own; any other is X01 (spec 19.6).
RULE_OF_KEY = {
    "multi_step_reward_strategy": "X17",
    "artifacts": "X19",
    "collect": "X20",
    "mcp_servers": "X22",
}

# Each round drops the keys that the model refused. Two are enough unless a dropped
# key uncovers another mistake; a bound keeps a strange file from costing more.
MAX_ROUNDS = 8


def parse(text: bytes, file: str, found: Findings) -> dict[str, Any] | None:
    """The parsed text, or ``None`` with a problem (X01). A BOM is tolerated."""
    try:
        return tomli.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        found.problem(file, f"is not UTF-8 (byte {error.start})", "X01")
    except tomli.TOMLDecodeError as error:
        found.problem(file, f"is not valid TOML: {error}", "X01")
    except RecursionError:
        found.problem(file, "is nested too deeply", "X01")
    return None


def validate(
    raw: dict[str, Any],
    model: type[Model],
    file: str,
    found: Findings,
    path: KeyPath = (),
) -> Model:
    """The model of ``raw``. What is wrong goes to ``found``, and is then left out.

    So that further checks can go on and everything is told at once, a refused key
    is dropped and counts as unset. ``path`` is where ``raw`` lies in its file.
    """
    left: Any = raw
    dropped: set[KeyPath] = set()
    for _ in range(MAX_ROUNDS):
        try:
            return model.model_validate(left)
        except ValidationError as error:
            details = error.errors(include_url=False)
        if left is raw:
            left = _copied(raw)
        for detail in details:
            location = _location(detail, left)
            if _is_incomplete(detail) and _is_above(location, dropped):
                continue  # what it lacks was there, and was dropped for what it said
            text = _message(detail)
            found.problem(*_problem(detail, (*path, *location), text, left, file))
        # Later entries of an array first, so that indexes stay right.
        for location in sorted(
            {_location(detail, left) for detail in details},
            key=lambda place: [str(part).zfill(6) for part in place],
            reverse=True,
        ):
            _drop(left, location)
            dropped.add(location)
    return model()


def _is_incomplete(detail: ErrorDetails) -> bool:
    """True when a table lacks a key, not when a key has a bad value."""
    return detail["type"] in ("missing", "X21", "X22") and isinstance(
        detail["input"], dict
    )


def _is_above(table: KeyPath, dropped: set[KeyPath]) -> bool:
    return any(location[: len(table)] == table for location in dropped)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_copied(entry) for entry in value]
    return value


def _location(detail: ErrorDetails, raw: Any) -> KeyPath:
    """The error's place as far as the file has it."""
    place: list[str | int] = []
    for part in detail["loc"]:
        if not _holds(raw, part):
            break
        raw = raw[part]
        place.append(part)
    return tuple(place)


def _drop(raw: Any, location: KeyPath) -> None:
    if not location:
        raw.clear()
        return
    *tables, key = location
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


def _problem(
    detail: ErrorDetails, location: KeyPath, text: str, raw: object, file: str
) -> tuple[str, str, str]:
    # These are about a whole table: one that should be there, or is incomplete.
    is_table = detail["type"] in ("dict_type", "model_type") or _is_incomplete(detail)
    name = key_name(location, raw, is_table=is_table) if location else ""
    return (f"{file}: {name}" if name else file), text, _rule(detail)


def _rule(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind.startswith("X"):
        return kind
    return next(
        (RULE_OF_KEY[part] for part in detail["loc"] if part in RULE_OF_KEY), "X01"
    )


def _message(detail: ErrorDetails) -> str:
    kind, value = detail["type"], detail["input"]
    if kind.startswith("X"):
        text = str(detail["msg"])
        # The rule's own text says what is due; what was found helps where it is short.
        needs_found = text.startswith("must be") and "not " not in text
        return f"{text}, not {shown(value)}" if needs_found else text
    if kind == "missing":
        return f"{detail['loc'][-1]} is missing"
    if kind == "literal_error":
        return f"{shown(value)} is not {detail['ctx']['expected'].replace(chr(39), chr(34))}"
    if kind in EXPECTED:
        return f"must be {EXPECTED[kind]}, not {shown(value)}"
    return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}"


def shown(value: object) -> str:
    """A TOML value with its type, cut to a readable length."""
    match value:
        case bool():
            text = "true" if value else "false"
        case str():
            text = f"the string {value[:60]!r}"
        case int() | float():
            text = f"the number {value}"
        case dict():
            text = "a table"
        case list():
            text = "an array"
        case _:
            text = f"the date or time {value}"
    return text


def tables(value: object) -> Iterator[dict[str, Any]]:
    """The tables of an array of tables that may be something else."""
    if isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, dict))
