"""Which JSON files are collected as step tasks: told by their places, nothing is read."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path


def is_collected(path: Path, patterns: Sequence[str], root: Path) -> bool:
    """True for a file that is collected as a step task.

    ``patterns`` are relative to ``root``, and ``*`` in them spans folders; without any, the
    usual places count: ``*.task.json``, and ``tasks/*.json`` of a bundle.
    """
    if not patterns:
        from pytest_harbor.tasks.steps.files import is_step_file

        return is_step_file(path)
    place = path.relative_to(root) if path.is_relative_to(root) else path
    return any(
        fnmatchcase(place.as_posix() if "/" in pattern else path.name, pattern)
        for pattern in patterns
    )


def is_data(path: Path) -> bool:
    """True for the artifacts of a bundle with tasks: whatever they hold, it is no test."""
    if path.name != "artifacts":
        return False
    from pytest_harbor.tasks.steps.files import TASKS

    return (path.parent / TASKS).is_dir() and path.is_dir()
