"""Keys that no model knows: tolerated, but named with the nearest known key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple, cast, get_args, get_origin

from pydantic import BaseModel

from pytest_harbor.tasks.folder.keys import dotted


class Known(NamedTuple):
    """The keys of one table; ``free`` tables may hold others."""

    keys: Mapping[str, Known | None]
    free: bool
    repeated: frozenset[str]
    """Keys that are arrays of tables."""


def unknown_keys(
    raw: Mapping[str, Any], model: type[BaseModel], path: tuple[str, ...] = ()
) -> Iterator[str]:
    """One line per unknown key of ``raw``, at any depth, each key once.

    ``path`` is where ``raw`` lies in its file.
    """
    seen: set[str] = set()
    for line in _walk(raw, known_keys(model), path, ()):
        if line not in seen:
            seen.add(line)
            yield line


@cache
def known_keys(model: type[BaseModel]) -> Known:
    """The keys of a model and of the tables below it."""
    keys: dict[str, Known | None] = {}
    repeated = set()
    for name, field in model.model_fields.items():
        table = _table_of(field.annotation)
        keys[name] = known_keys(table) if table else None
        if table and _is_array(field.annotation):
            repeated.add(name)
    return Known(keys, model.model_config.get("extra") == "allow", frozenset(repeated))


def _table_of(annotation: Any) -> type[BaseModel] | None:
    # Python 3.10 takes tuple[X, ...] for a class, too.
    is_class = isinstance(annotation, type) and get_origin(annotation) is None
    if is_class and issubclass(annotation, BaseModel):
        return cast("type[BaseModel]", annotation)
    return next(filter(None, map(_table_of, get_args(annotation))), None)


def _is_array(annotation: Any) -> bool:
    return Ellipsis in get_args(annotation)


def _walk(
    raw: Mapping[str, Any],
    known: Known,
    path: tuple[str, ...],
    repeated: tuple[bool, ...],
) -> Iterator[str]:
    for key, value in raw.items():
        if key in known.keys:
            below = known.keys[key]
            if below is None:
                continue
            is_array = key in known.repeated
            tables = value if is_array and isinstance(value, list) else [value]
            for table in tables:
                if isinstance(table, dict):
                    yield from _walk(table, below, (*path, key), (*repeated, is_array))
        elif not known.free:
            yield _line(key, value, known, path, repeated)


def _line(
    key: str,
    value: object,
    known: Known,
    path: tuple[str, ...],
    repeated: tuple[bool, ...],
) -> str:
    text = f"unknown key {_shown(key, _is_table(value), path, repeated)}"
    if near := get_close_matches(key, known.keys, n=1, cutoff=0.7):
        # A key may hold a table without being one of the model's: [environment.env].
        is_table = known.keys[near[0]] is not None or _is_table(value)
        text += f" (did you mean {_shown(near[0], is_table, path, repeated)}?)"
    return text


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _shown(
    key: str, is_table: bool, path: tuple[str, ...], repeated: tuple[bool, ...]
) -> str:
    if is_table:
        return f"[{'.'.join((*path, key))}]"
    if repeated and repeated[-1]:
        return f"[[{'.'.join(path)}]].{key}"
    return dotted((*path, key))
