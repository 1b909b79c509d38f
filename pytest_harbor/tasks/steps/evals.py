"""Evals: ``evals/<name>.toml``, a list of the bundle's tasks (spec 1.2)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import Strict, model_validator
from pydantic_core import ErrorDetails

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.steps.entries import LOCAL_VERSION
from pytest_harbor.tasks.steps.files import TASKS
from pytest_harbor.tasks.steps.keys import path_text
from pytest_harbor.tasks.steps.values import Id, Record, Version
from pytest_harbor.tasks.toml_text import parse
from pytest_harbor.tasks.validation import TOML_WORDS, KeyPath, message, read_model

EVALS = "evals"
RULE = "1.2"


class TaskRef(Record):
    """One of ``tasks``; a string is short for ``{ task_id = <string> }``."""

    task_id: Id
    """The task."""
    task_version: Version | None = None
    """Its version; a file has one, 1."""

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: object) -> object:
        return {"task_id": value} if isinstance(value, str) else value


class EvalConfig(Record):
    """``evals/<name>.toml``."""

    tasks: Annotated[tuple[TaskRef, ...], Strict(False)] = ()
    """The tasks, in order."""
    type: Any = None
    """Always ``eval``."""
    id: Any = None
    """Without meaning here."""


@dataclass(frozen=True)
class Eval:
    """A named list of tasks."""

    name: str
    """The file's name without its extension."""
    file: Path
    tasks: tuple[Path, ...]
    """The task files, in order, each once."""
    warnings: tuple[str, ...] = ()
    """One line each, with the file."""


def is_eval_file(file: Path) -> bool:
    """True for ``evals/*.toml`` beside a ``tasks/`` folder. Only names are looked at."""
    return (
        file.suffix == ".toml"
        and file.parent.name == EVALS
        and (file.parent.parent / TASKS).is_dir()
    )


def load_eval(file: Path, *, strict: bool = False) -> Eval:
    """Read a list of tasks. The task files themselves are not read.

    Raises:
        TaskLoadError: the file cannot be read or names tasks that the bundle does not
            have, with every problem found.
    """
    file = Path(os.path.normpath(file.absolute()))
    label = f"{EVALS}/{file.name}"
    found = Findings()
    raw: dict[str, Any] = {}
    try:
        raw = parse(file.read_bytes(), label, found, RULE) or {}
    except OSError as error:
        found.problem(label, f"cannot be read: {error.strerror}", RULE)
    for key in raw:
        if key not in EvalConfig.model_fields:
            found.warn(f"{label}: unknown key {key}")

    def report(detail: ErrorDetails, place: KeyPath, _: object) -> None:
        where = f"{label}: {path_text(place)}" if place else label
        found.problem(where, message(detail, TOML_WORDS), RULE)

    config, _ = read_model(raw, EvalConfig, report)
    refs = config.tasks if config is not None else ()
    if not refs and not found.problems:
        found.problem(f"{label}: tasks", "names no task", RULE)
    tasks = _task_files(file.parent.parent / TASKS, refs, label, found)
    if strict:
        found.make_strict()
    if found.problems:
        raise TaskLoadError(str(file), tuple(found.problems))
    return Eval(file.stem, file, tasks, found.lines)


def _task_files(
    folder: Path, refs: tuple[TaskRef, ...], label: str, found: Findings
) -> tuple[Path, ...]:
    known = {path.stem: path for path in sorted(folder.glob("*.json"))}
    tasks: dict[Path, None] = {}
    for number, ref in enumerate(refs):
        where = f"{label}: tasks[{number}]"
        path = known.get(ref.task_id)
        if path is None:
            near = get_close_matches(ref.task_id, known, n=1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            found.problem(where, f"no task '{ref.task_id}' in tasks/{hint}", RULE)
        elif ref.task_version not in (None, LOCAL_VERSION):
            what = f"'{ref.task_id}' is a file, whose one version is {LOCAL_VERSION}"
            found.problem(where, f"{what}, not {ref.task_version}", RULE)
        elif path in tasks:
            found.warn(f"{where}: '{ref.task_id}' is there twice, and runs once")
        else:
            tasks[path] = None
    return tuple(tasks)
