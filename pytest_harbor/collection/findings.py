"""What collection noticed and people should know (field notes 3.6)."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Final

import pytest

from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.guard import (
    TASK_FILE,
    looks_like_a_task,
    named_paths,
    old_tasks,
)
from pytest_harbor.collection.warnings import warn

_UNVALIDATED: Final = pytest.StashKey[bool]()


def warn_of_hidden_task(config: pytest.Config, path: Path) -> None:
    """Name a task that pytest leaves out because of its folder's name."""
    name = path.name
    hiding = [p for p in config.getini("norecursedirs") if fnmatch.fnmatch(name, p)]
    if name.startswith(".") or not hiding:
        return
    warn(
        config,
        f"task folder {name!r} is not collected: its name matches {hiding[0]!r} of "
        f"pytest's norecursedirs. Rename it, or set norecursedirs",
        path / TASK_FILE,
    )


def warn_of_lookalike(config: pytest.Config, path: Path) -> None:
    """Name a folder that looks like a task and is none (field notes 3.6)."""
    if looks_like_a_task(path):
        warn(
            config,
            f"{path.name!r} has instruction.md and tests/ but no task.toml: it is not "
            f"collected as a task",
            path,
        )


def warn_of_unvalidated(config: pytest.Config, task_file: Path) -> None:
    """Name the first task that ``--harbor-validate`` says nothing about."""
    if config.stash.get(_UNVALIDATED, False):
        return
    config.stash[_UNVALIDATED] = True
    warn(
        config,
        f"--harbor-validate does not validate {task_file.parent.name!r} (nor others like "
        f"it): a conftest.py or plugin replaces fixture harbor_agent, so neither oracle "
        f"nor nop run",
        task_file,
    )


def warn_of_empty_paths(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name what was typed on the command line and yields nothing at all.

    Silent about folders of Python files in sessions that have nothing to do with tasks.
    """
    named = named_paths(config)
    if not named:
        return
    filled: set[Path] = set()
    for path in {item.path for item in items}:
        filled.update((path, *path.parents))
    for path in named:
        if path in filled or not path.is_dir():
            continue
        old = list(old_tasks(path))
        if old:
            warn(
                config,
                f"no task in {path}: {old[0].name}/task.yaml is the format before "
                f"task.toml, which is not collected; convert it to a task folder",
                path,
            )
        elif sessions.of(config).tasks_seen or not _has_python(path):
            warn(config, f"no task and no test in {path}", path)


def _has_python(path: Path) -> bool:
    """Whoever has Python there and no tests in it is no concern of ours."""
    return next(path.rglob("*.py"), None) is not None
