"""Loads a step task: every problem of the file told at once (spec 1, 13)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.step import Step
from pytest_harbor.tasks.steps.task import StepTask


def load_step_task(
    file: Path,
    *,
    strict: bool = False,
    seed: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    step_types: Mapping[str, type[Step]] | None = None,
    bundle: Bundle | None = None,
) -> StepTask:
    """Load and check one task file. Nothing is run.

    ``seed`` fills placeholders and ``overrides`` (``user_overrides``) are laid over the
    file first. ``step_types`` are a project's own types; a name replaces a built-in
    one. ``bundle`` saves reading the same folder again for each of its tasks; unset, it
    is the file's own. With ``strict``, warnings refuse the task.

    Raises:
        TaskLoadError: the task cannot be run as it is, with every problem found.
    """
    raise NotImplementedError
