"""Which files are step tasks, and which bundle they belong to (spec 1.1, 1.2).

Standard library only: every JSON file that pytest meets is asked about.
"""

from __future__ import annotations

import os
from pathlib import Path

TASKS = "tasks"
TASK_SUFFIX = ".task.json"
# Beside one of these, tasks/ holds tasks.
MARKS = ("envs", "agents", "artifacts", "aliases.toml")


def is_step_file(file: Path) -> bool:
    """True for ``*.task.json``, and for ``tasks/*.json`` of a bundle folder.

    A bundle folder has an ``envs/``, ``agents/`` or ``artifacts/`` folder or an
    ``aliases.toml``. Only names are looked at.
    """
    if file.name.endswith(TASK_SUFFIX):
        return True
    return (
        file.suffix == ".json"
        and file.parent.name == TASKS
        and is_bundle(file.parent.parent)
    )


def is_bundle(folder: Path) -> bool:
    """True for a folder that holds what steps name."""
    return any(os.path.exists(folder / mark) for mark in MARKS)  # noqa: PTH110


def bundle_root(file: Path) -> Path:
    """The bundle of a task file: the folder above its ``tasks/``, else its own."""
    return file.parent.parent if file.parent.name == TASKS else file.parent


def task_name(file: Path) -> str:
    """The task's name: the file's without its extension."""
    return file.name.removesuffix(TASK_SUFFIX).removesuffix(".json")
