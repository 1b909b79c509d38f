"""Datasets: ``dataset.toml``, a shared ``verifier.py``, and where tasks lie (spec 1.4, 4)."""

# Thousands of folders are read, and a Path object for each name doubles the time.
# ruff: noqa: PTH113

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from pytest_harbor.errors import Problem, TaskLoadError
from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.folder.legacy import modernise_environment
from pytest_harbor.tasks.folder.model import EnvironmentConfig, Table
from pytest_harbor.tasks.folder.toml_file import validate
from pytest_harbor.tasks.folder.unknown_keys import unknown_keys
from pytest_harbor.tasks.folder.values import Platform, Seconds
from pytest_harbor.tasks.toml_text import parse

DATASET_FILE = "dataset.toml"
TASK_FILE = "task.toml"
DATASET_VERIFIER = "verifier.py"
MAX_LEVELS = 6  # spec 1.4: task folders lie up to six levels below the dataset's root


class DefaultsConfig(Table):
    """``[gym.defaults]``: policy for every task of the dataset."""

    timeout_multiplier: Seconds = 1.0
    """Scales agent and verifier budgets; collect hooks and health checks not."""
    resource_multiplier: Seconds = 1.0
    """Scales declared ``cpus``, ``memory_mb`` and ``storage_mb``."""


class BuildsConfig(Table):
    """``[gym.builds]``: how the images of the dataset's tasks are built."""

    platform: Platform | None = None
    """What they are built for (``linux/amd64``); unset: the daemon's own."""
    force: bool = False
    """Build in every run, whatever is cached."""


class GymConfig(Table):
    """``[gym]``; keys without a type are other tools'."""

    license: Any = None
    type: Any = None
    allowed_agents: Any = None
    domain: Any = None
    verified: Any = None
    source: Any = None
    verifier: Any = None
    builds: BuildsConfig = Field(default_factory=BuildsConfig)
    """Image builds."""
    defaults: DefaultsConfig = Field(default_factory=DefaultsConfig)
    """Policy for every task."""
    tasks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Per task ID: ``[environment]`` keys that replace the task's own."""


class DatasetConfig(Table):
    """``dataset.toml``: the ``[gym]`` table; Harbor's own tables are left alone."""

    dataset: Any = None
    tasks: Any = None
    files: Any = None
    metadata: Any = None
    gym: GymConfig = Field(default_factory=GymConfig)
    """What this runner reads."""


@dataclass(frozen=True)
class Dataset:
    """A dataset's settings, checked.

    ``overrides`` maps a task ID to the ``[environment]`` keys that are laid over the
    task's own before anything else (spec 4).
    """

    root: Path
    path: Path
    """``dataset.toml``; it need not exist where there is only a ``verifier.py``."""
    timeout_multiplier: float = 1.0
    resource_multiplier: float = 1.0
    platform: str | None = None
    force_build: bool = False
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)
    """The file as parsed."""
    verifier_py: Path | None = None
    """Python verifier for every single-step task without a verifier of its own."""
    warnings: tuple[str, ...] = ()


def load_dataset(path: Path, *, strict: bool = False) -> Dataset:
    """Read the dataset at ``path``: its folder or its ``dataset.toml``.

    With ``strict``, warnings refuse it; legacy keys do not.

    Raises:
        TaskLoadError: the file cannot be read, with every problem at once.
    """
    file = path if path.name == DATASET_FILE else path / DATASET_FILE
    root = file.parent
    verifier = root / DATASET_VERIFIER
    verifier_py = verifier if verifier.is_file() else None
    if not file.is_file():
        return Dataset(root, file, verifier_py=verifier_py)

    found = Findings()
    raw = parse(file.read_bytes(), DATASET_FILE, found, "X01") or {}
    for line in unknown_keys(raw, DatasetConfig):
        found.warn(f"{DATASET_FILE}: {line}")
    config = validate(raw, DatasetConfig, DATASET_FILE, found)
    overrides = {
        task_id: _checked_override(task_id, table, found)
        for task_id, table in config.gym.tasks.items()
    }
    if "inputs" in (_table(raw, "gym", "verifier") | _table(raw, "verifier")):
        _refuse_inputs("[gym.verifier].inputs", found)
    if strict:
        found.make_strict()
    if found.problems:
        raise TaskLoadError(str(root), tuple(found.problems))
    return Dataset(
        root=root,
        path=file,
        timeout_multiplier=config.gym.defaults.timeout_multiplier,
        resource_multiplier=config.gym.defaults.resource_multiplier,
        platform=config.gym.builds.platform,
        force_build=config.gym.builds.force,
        overrides=overrides,
        raw=raw,
        verifier_py=verifier_py,
        warnings=found.lines,
    )


def _checked_override(
    task_id: str, table: dict[str, Any], found: Findings
) -> Mapping[str, Any]:
    name = f'gym.tasks."{task_id}"'
    override = dict(table)
    if isinstance(nested := override.pop("environment", None), dict):
        override |= nested
    if "inputs" in override:
        _refuse_inputs(f"[{name}].inputs", found)
        del override["inputs"]
    modernise_environment(override, DATASET_FILE, name, found)
    path = ("gym", "tasks", f'"{task_id}"')
    for line in unknown_keys(override, EnvironmentConfig, path):
        found.warn(f"{DATASET_FILE}: {line}")
    validate(override, EnvironmentConfig, DATASET_FILE, found, path)
    known = EnvironmentConfig.model_fields
    return {key: value for key, value in override.items() if key in known}


def _refuse_inputs(key: str, found: Findings) -> None:
    found.problem(
        f"{DATASET_FILE}: {key}", "sidecar inputs are not supported; remove it", "X28"
    )


def _table(raw: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    table: Any = raw
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return dict(table) if isinstance(table, Mapping) else {}


def find_dataset_root(folder: Path, *, stop: Path) -> Path | None:
    """The root of the dataset that the task ``folder`` belongs to, if any.

    The nearest folder above with a ``dataset.toml``, else the nearest with a
    ``verifier.py``; at most six levels up and not above ``stop``.
    """
    by_verifier: Path | None = None
    for parent in list(folder.parents)[:MAX_LEVELS]:
        if (parent / DATASET_FILE).is_file():
            return parent
        if by_verifier is None and (parent / DATASET_VERIFIER).is_file():
            by_verifier = parent
        if parent == stop:
            break
    return by_verifier


def find_tasks(path: Path) -> list[Path]:
    """The task folders at or below ``path``, in the order of their paths.

    Searches six levels, skips hidden folders, and looks neither into task folders nor
    through links. A link to a task folder is in the list, so that loading it says
    what is wrong (X05).
    """
    if (path / TASK_FILE).is_file():
        return [path]
    return sorted(_tasks_below(str(path), MAX_LEVELS))


def _tasks_below(folder: str, levels: int) -> Iterator[Path]:
    if levels == 0:
        return
    with os.scandir(folder) as entries:
        folders = [
            entry
            for entry in entries
            if not entry.name.startswith(".") and entry.is_dir()
        ]
    for entry in folders:
        if os.path.isfile(f"{entry.path}/{TASK_FILE}"):
            yield Path(entry.path)
        elif not entry.is_symlink():
            yield from _tasks_below(entry.path, levels - 1)


def duplicate_ids(folders: Path | Iterable[Path]) -> dict[Path, Path]:
    """Task folders whose ID another one has, each with the first of that ID (X06).

    ``folders`` is a dataset's root or the task folders themselves, in order.
    """
    if isinstance(folders, Path):
        folders = find_tasks(folders)
    first: dict[str, Path] = {}
    return {
        folder: first[folder.name]
        for folder in folders
        if first.setdefault(folder.name, folder) != folder
    }


def duplicate_problem(folder: Path, other: Path, root: Path) -> Problem:
    """The refusal of a task whose ID is taken (X06)."""
    taken = other.relative_to(root) if other.is_relative_to(root) else other
    return Problem(
        "", f"task ID '{folder.name}' is also {taken.as_posix()}; rename one", "X06"
    )


def override_problems(
    dataset: Dataset, folders: Sequence[Path] | None = None
) -> tuple[Problem, ...]:
    """``[gym.tasks."<id>"]`` tables that name no task folder (X29).

    ``folders`` are the dataset's task folders; without them they are searched, which
    costs nothing where the dataset has no such tables.
    """
    if not dataset.overrides:
        return ()
    if folders is None:
        folders = find_tasks(dataset.root)
    known = {folder.name for folder in folders}
    return tuple(
        Problem(
            DATASET_FILE,
            f'[gym.tasks."{task_id}"] names no task folder;'
            " correct the name or remove the table",
            "X29",
        )
        for task_id in dataset.overrides
        if task_id not in known
    )
