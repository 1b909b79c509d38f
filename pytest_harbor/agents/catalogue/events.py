"""Reading logs that may hold anything: lines of JSON, and what is in them. Pure.

A log is an agent's own words. What is not of the kind that is asked for is not there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final, TypeAlias

Event: TypeAlias = Mapping[str, Any]

_NOTHING: Final[Event] = {}


def json_lines(text: str) -> Iterator[Event]:
    """The JSON objects among the lines of ``text``."""
    for line in text.splitlines():
        if not line.lstrip().startswith("{"):
            continue
        found = as_object(_loaded(line))
        if found:
            yield found


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def as_object(value: object) -> Event:
    """A JSON object; anything else is an empty one."""
    return value if isinstance(value, dict) else _NOTHING


def as_list(value: object) -> Sequence[Any]:
    """A JSON array; anything else is an empty one."""
    return value if isinstance(value, list) else ()


def at(value: object, *path: str) -> Any:
    """What is at a path of keys, or ``None``."""
    for key in path:
        value = as_object(value).get(key)
    return value


def as_text(value: object) -> str:
    """A text; anything else is none."""
    return value if isinstance(value, str) else ""


def shown(value: object) -> str:
    """A text as it is, anything else as JSON; nothing for ``None``."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def as_count(value: object) -> int | None:
    """A number of something: whole and not negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if math.isfinite(value) and value >= 0 else None


def as_cost(value: object) -> float | None:
    """An amount of money."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def as_arguments(value: object) -> dict[str, Any]:
    """The arguments of a tool call: an object, also as JSON text; else ``{"input": ...}``."""
    if isinstance(value, str):
        loaded = _loaded(value)
        value = loaded if isinstance(loaded, dict) else value
    if isinstance(value, dict):
        return value
    return {} if value in (None, "") else {"input": value}


def as_time(value: object) -> str | None:
    """A point in time in ISO 8601, from one, or from seconds or milliseconds since 1970."""
    if isinstance(value, str):
        try:
            datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    seconds = value / 1000 if value > _MILLISECONDS else value
    try:
        return datetime.fromtimestamp(seconds, tz=timezone.utc).isoformat()
    except (OverflowError, ValueError, OSError):
        return None


_MILLISECONDS: Final = 100_000_000_000
"""Above it, a number counts milliseconds: in seconds it would be the year 5138."""


def joined_text(content: object) -> str:
    """The text of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    texts = (as_text(at(part, "text")) for part in as_list(content))
    return "\n".join(text for text in texts if text)
