"""The ``harbor`` marker: which task a Python test is about, and how."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from pytest_harbor.collection.guard import TASK_FILE, is_task_folder
from pytest_harbor.errors import SettingsError

_FOR_TESTS: Final = frozenset({"agent", "min_reward"})
_OF_TASKS: Final = frozenset({"task", "difficulty", "category"})


class Marked(NamedTuple):
    """What the ``harbor`` markers of an item say, the closest first."""

    path: str | None = None
    agent: str | None = None
    min_reward: float | None = None


def read(item: pytest.Item) -> Marked:
    """Read an item's markers.

    Raises:
        SettingsError: an argument that the marker does not have, or of a wrong type.
    """
    values: dict[str, Any] = {}
    for mark in item.iter_markers("harbor"):
        given = dict(mark.kwargs)
        if len(mark.args) > 1:
            raise SettingsError(
                f"@pytest.mark.harbor takes one path, got {len(mark.args)} arguments"
            )
        if mark.args:
            given["path"] = mark.args[0]
        for name, value in given.items():
            if name not in _OF_TASKS:
                values.setdefault(name, _checked(name, value))
    return Marked(**values)


def _checked(name: str, value: object) -> object:
    if name == "path":
        if isinstance(value, str | Path):
            return str(value)
        raise SettingsError(f"@pytest.mark.harbor: the path is {value!r}, not a string")
    if name == "agent":
        if isinstance(value, str):
            return value
        raise SettingsError(f"@pytest.mark.harbor: agent is {value!r}, not a name")
    if name == "min_reward":
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise SettingsError(
            f"@pytest.mark.harbor: min_reward is {value!r}, not a number"
        )
    raise SettingsError(
        f"@pytest.mark.harbor has no argument {name!r}; it has "
        f"{', '.join(sorted(_FOR_TESTS))}"
    )


def expects_failure(item: pytest.Item) -> bool:
    """True when an ``xfail`` mark without a condition says that the item fails."""
    if item.config.getoption("runxfail", default=False):
        return False
    return any(
        not mark.args and "condition" not in mark.kwargs
        for mark in item.iter_markers("xfail")
    )


def find_task(path: str, item: pytest.Item) -> Path:
    """The task folder that a marker or a factory call names.

    Looks beside the test's file, then in the root directory.

    Raises:
        SettingsError: there is no task; says where it was looked for.
    """
    tried = []
    for base in (item.path.parent, item.config.rootpath):
        folder = base / path
        if folder.name == TASK_FILE:
            folder = folder.parent
        if is_task_folder(folder):
            return Path(os.path.abspath(folder))  # noqa: PTH100 - links stay
        tried.append(str(folder))
    places = " nor ".join(dict.fromkeys(tried))
    raise SettingsError(f"no task folder {path!r}: there is no {TASK_FILE} in {places}")
