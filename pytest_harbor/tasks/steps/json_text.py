"""Reads strict JSON, with a problem that says where (spec 1.1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.validation import KeyPath

RULE = "13.1"
MAX_DEPTH = 100  # beyond any task, and well below where Python's own recursion ends


class _Repetitive(dict[str, Any]):
    """An object that had a key twice."""

    keys_given_twice: tuple[str, ...] = ()


class _NotANumber(ValueError):
    """``NaN`` or an infinity, which Python reads and JSON does not have."""


def parse_json(content: bytes, file: str, found: Findings) -> Any:
    """The parsed text, or ``None`` with a problem. A BOM is tolerated."""
    try:
        text = content.decode("utf-8-sig")
        parsed = json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse_constant
        )
        if "\\ud" in text.lower():
            json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        found.problem(file, f"is not UTF-8 (byte {error.start})", RULE)
    except UnicodeEncodeError:
        found.problem(file, "holds half of a surrogate pair (\\ud800 to \\udfff)", RULE)
    except json.JSONDecodeError as error:
        where = f"{file}: line {error.lineno}, column {error.colno}"
        found.problem(where, f"is not valid JSON: {_lowered(error.msg)}", RULE)
    except _NotANumber as error:
        found.problem(file, f"is not valid JSON: {error} is no number", RULE)
    except RecursionError:
        found.problem(file, "is nested too deeply", RULE)
    except ValueError:  # an integer of thousands of digits
        found.problem(file, "holds a number that is too long", RULE)
    else:
        if parsed is None:
            found.problem(file, "is null", RULE)
        elif _is_deeper(parsed, MAX_DEPTH):
            found.problem(file, f"is nested deeper than {MAX_DEPTH} levels", RULE)
        return parsed
    return None


def keys_given_twice(parsed: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Where an object of the parsed text has a key more than once; the last one counts."""
    if isinstance(parsed, dict):
        if isinstance(parsed, _Repetitive):
            yield from ((*path, key) for key in parsed.keys_given_twice)
        for key, value in parsed.items():
            yield from keys_given_twice(value, (*path, key))
    elif isinstance(parsed, list):
        for index, value in enumerate(parsed):
            yield from keys_given_twice(value, (*path, index))


def _is_deeper(parsed: Any, levels: int) -> bool:
    values = [parsed]
    for _ in range(levels + 1):
        values = [
            value
            for holder in values
            if isinstance(holder, (dict, list))
            for value in (holder.values() if isinstance(holder, dict) else holder)
        ]
        if not values:
            return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) == len(pairs):
        return read
    repetitive = _Repetitive(read)
    keys = [key for key, _ in pairs]
    repetitive.keys_given_twice = tuple(k for k in read if keys.count(k) > 1)
    return repetitive


def _refuse_constant(name: str) -> NoReturn:
    raise _NotANumber(name)


def _lowered(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"
