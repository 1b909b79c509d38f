"""Loads a step task: every problem of the file told at once (spec 1, 13)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_harbor.errors import Problem, TaskLoadError
from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.entry_checks import check_entries
from pytest_harbor.tasks.steps.files import bundle_root, task_name
from pytest_harbor.tasks.steps.json_text import keys_given_twice, parse_json
from pytest_harbor.tasks.steps.keys import path_text
from pytest_harbor.tasks.steps.model import STEP_TYPES
from pytest_harbor.tasks.steps.names import check_names
from pytest_harbor.tasks.steps.overrides import filled, overridden
from pytest_harbor.tasks.steps.read_steps import SHAPE, place, read_steps, step_id
from pytest_harbor.tasks.steps.step import Step
from pytest_harbor.tasks.steps.task import StepTask
from pytest_harbor.tasks.validation import JSON_WORDS, shown

# Keys of a stored task; ``type`` is always "task" (spec 1.1).
STORED_KEYS = ("id", "type", "version", "steps")
STEP = re.compile(r"^[^:]*: step (\d+)\b")


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
    file = Path(os.path.normpath(file.absolute()))
    task = StepTask(
        name=task_name(file),
        file=file,
        bundle=bundle or Bundle(bundle_root(file)),
        seed=dict(seed or {}),
        overrides=dict(overrides or {}),
        step_types={**STEP_TYPES, **(step_types or {})},
    )
    found = Findings()
    parsed = None
    try:
        content = file.read_bytes()
    except OSError as error:
        found.problem(task.label, f"cannot be read: {error.strerror}", SHAPE)
    else:
        parsed = parse_json(content, task.label, found)
    raw = None if found.problems else _steps_of(parsed, task.label, found)
    if raw is None:
        raise TaskLoadError(str(file), tuple(found.problems), tuple(found.warnings))
    return _checked(replace(task, source=tuple(raw)), found, strict=strict)


def with_changes(
    task: StepTask,
    *,
    seed: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> StepTask:
    """The task as a run with this seed and these overrides has it (spec 1.5).

    What is ``None`` stays as the task has it. The task itself is not changed.

    Raises:
        TaskLoadError: it cannot be run so, with every problem found.
    """
    changed = replace(
        task,
        seed=task.seed if seed is None else dict(seed),
        overrides=task.overrides if overrides is None else dict(overrides),
    )
    return _checked(changed, Findings(), strict=strict)


def _checked(task: StepTask, found: Findings, *, strict: bool) -> StepTask:
    raw = [filled(overridden(step, task.overrides), task.seed) for step in task.source]
    steps = read_steps(raw, task.label, task.bundle, task.step_types, found)
    check_names(steps, task.bundle, found)
    check_entries(steps, task.bundle, found)
    if strict:
        found.make_strict()
    if found.problems:
        problems = tuple(in_order(found.problems))
        raise TaskLoadError(str(task.file), problems, tuple(found.warnings))
    return replace(task, steps=tuple(steps.steps), warnings=found.lines)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """The problems by step; those of no step come first."""

    def position(problem: Problem) -> int:
        found = STEP.search(str(problem))
        return int(found[1]) if found else 0

    return sorted(problems, key=position)


def _steps_of(parsed: Any, label: str, found: Findings) -> Sequence[Any] | None:
    """The list of steps, of a bare list or a stored task."""
    if isinstance(parsed, dict):
        _check_stored(parsed, label, found)
        if "steps" not in parsed:
            found.problem(label, "is an object without 'steps'", SHAPE)
            return None
    steps = parsed["steps"] if isinstance(parsed, dict) else parsed
    if not isinstance(steps, list):
        what = shown(steps, JSON_WORDS)
        if steps is not parsed:
            found.problem(f"{label}: steps", f"must be a list, not {what}", SHAPE)
        else:
            what = f"must be a list of steps, or an object with 'steps', not {what}"
            found.problem(label, what, SHAPE)
        return None
    if not steps:
        found.problem(label, "has no steps", SHAPE)
        return None
    for index, step in enumerate(steps):
        for path in keys_given_twice(step):
            where = place(label, index + 1, step_id(step), path_text(path))
            found.problem(where, "is given twice; keep one", SHAPE)
    return steps


def _check_stored(task: Mapping[str, Any], label: str, found: Findings) -> None:
    """The keys that a stored task has beside its steps."""
    for path in keys_given_twice(task):
        if path[:1] != ("steps",) or len(path) == 1:  # else it is told of the step
            what = "is given twice; keep one"
            found.problem(f"{label}: {path_text(path)}", what, SHAPE)
    for key in task:
        if key not in STORED_KEYS:
            found.warn(f"{label}: unknown key '{key}' beside the steps")
    if task.get("type", "task") != "task":
        kind = shown(task["type"], JSON_WORDS)
        found.problem(f"{label}: type", f'must be "task", not {kind}', SHAPE)
