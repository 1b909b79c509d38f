"""Keys of a step that no model knows, or that are known and do nothing here (spec 1.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from pytest_harbor.tasks.folder.unknown_keys import Known, known_keys
from pytest_harbor.tasks.steps.step import Step
from pytest_harbor.tasks.validation import KeyPath

# What the loader adds to a step; the file has ``retry_config`` for the last.
OURS = frozenset({"position", "raw", "retry"})
RETRY_KEYS = ("retry_from_step_id", "go_to_step_id", "max_retries")
DEPENDENCY_KEYS = ("task_step_id",)


@cache
def file_keys(model: type[Step]) -> frozenset[str]:
    """The keys that a step of this type may have in a file."""
    names = (field.alias or name for name, field in model.model_fields.items())
    return frozenset(names) - OURS | {"retry_config"}


def unread_keys(raw: Mapping[str, Any], model: type[Step]) -> Iterator[str]:
    """One line per key of a step that is not read, at any depth."""
    known = file_keys(model)
    for key, value in raw.items():
        if key in model.unsupported:
            if value not in (None, False):  # else it asks for what happens anyway
                yield f"'{key}' is not supported by pytest-harbor, and ignored"
        elif key not in known:
            yield _unknown((key,), known)
    depends_on = raw.get("depends_on")
    for index, entry in enumerate(depends_on if isinstance(depends_on, list) else ()):
        yield from _below(("depends_on", index), entry, DEPENDENCY_KEYS)
    yield from _below(("retry_config",), raw.get("retry_config"), RETRY_KEYS)
    fields = known_keys(model)
    for key, nested in fields.keys.items():
        if nested is not None and key in known and key in raw:
            yield from _walk(raw[key], nested, (key,))


def path_text(path: KeyPath) -> str:
    """``criteria[1].weight``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _below(path: KeyPath, value: Any, known: Iterable[str]) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (_unknown((*path, key), known) for key in value if key not in known)


def _walk(value: Any, known: Known, path: KeyPath) -> Iterator[str]:
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _walk(entry, known, (*path, index))
    elif isinstance(value, dict):
        for key, entry in value.items():
            if key in known.keys:
                nested = known.keys[key]
                if nested is not None:
                    yield from _walk(entry, nested, (*path, key))
            elif not known.free:
                yield _unknown((*path, key), known.keys)


def _unknown(path: KeyPath, known: Iterable[str]) -> str:
    near = get_close_matches(str(path[-1]), known, n=1, cutoff=0.7)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    return f"unknown key '{path_text(path)}'{hint}"
