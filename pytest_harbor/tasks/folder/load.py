"""Loads a task folder: every file read once, every problem told at once (spec 1, 3)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pytest_harbor.errors import Problem, TaskLoadError
from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.folder.checks import check_config
from pytest_harbor.tasks.folder.dataset import TASK_FILE, Dataset
from pytest_harbor.tasks.folder.inputs import Input
from pytest_harbor.tasks.folder.layout import (
    PYTHON_VERIFIER,
    SOLVE_SCRIPT,
    TEST_SCRIPT,
    Layout,
    read_layout,
)
from pytest_harbor.tasks.folder.layout_checks import check_layout
from pytest_harbor.tasks.folder.legacy import modernise_task
from pytest_harbor.tasks.folder.model import TaskConfig
from pytest_harbor.tasks.folder.task import StepFiles, Task
from pytest_harbor.tasks.folder.toml_file import tables, validate
from pytest_harbor.tasks.folder.unknown_keys import unknown_keys
from pytest_harbor.tasks.toml_text import parse


def load_task(
    folder: Path, *, dataset: Dataset | None = None, strict: bool = False
) -> Task:
    """Load and check one task folder. Nothing is run and nothing is hashed.

    ``dataset`` is the dataset that the folder belongs to; its settings for this task
    are applied first. With ``strict``, warnings refuse the task; legacy keys do not.

    Raises:
        TaskLoadError: the task cannot be run as it is, with every problem found.
    """
    folder = Path(os.path.normpath(folder.absolute()))
    found = Findings()
    if folder.is_symlink():
        found.problem("", "task folder is a symbolic link; give its real path", "X05")
    raw = _read_toml(folder, found)
    if raw is None:
        raise TaskLoadError(str(folder), tuple(found.problems))

    modernise_task(raw, found)
    for line in unknown_keys(raw, TaskConfig):
        found.warn(f"{TASK_FILE}: {line}")
    _warn_of_booleans(raw, found)
    if dataset is not None and (override := dataset.overrides.get(folder.name)):
        _apply(override, raw)
    config = validate(raw, TaskConfig, TASK_FILE, found)
    config_is_sound = not found.problems

    layout = read_layout(folder, [step.name for step in config.steps], found)
    # An array that is not empty makes the task multi-step, whatever its tables hold.
    is_multi_step = bool(raw.get("steps"))
    check_layout(config, layout, dataset, found, is_multi_step=is_multi_step)
    if config_is_sound:
        # Keys that were refused count as unset here; what follows from that would be
        # a second message about the same mistake.
        check_config(config, layout, found)
    if strict:
        found.make_strict()
    if found.problems:
        problems, warnings = tuple(found.problems), tuple(found.warnings)
        raise TaskLoadError(str(folder), problems, warnings)
    return _task(folder, config, layout, dataset, found)


def _read_toml(folder: Path, found: Findings) -> dict[str, Any] | None:
    try:
        content = (folder / TASK_FILE).read_bytes()
    except OSError as error:
        found.problems.append(
            Problem(TASK_FILE, f"cannot be read: {error.strerror}", "X01")
        )
        return None
    return parse(content, TASK_FILE, found, "X01")


def _apply(override: Any, raw: dict[str, Any]) -> None:
    environment = raw.setdefault("environment", {})
    if not isinstance(environment, dict):
        return
    own = environment.get("env")
    environment.update(override)
    if isinstance(own, dict) and isinstance(override.get("env"), dict):
        environment["env"] = own | override["env"]  # variable by variable


def _warn_of_booleans(raw: dict[str, Any], found: Findings) -> None:
    for step in tables(raw.get("steps")):
        gate = step.get("min_reward")
        values = gate.values() if isinstance(gate, dict) else [gate]
        if any(isinstance(value, bool) for value in values):
            found.warn(
                f"{TASK_FILE}: step '{step.get('name')}': min_reward is a boolean,"
                " taken as 1.0 or 0.0; write a number"
            )


def _task(
    folder: Path,
    config: TaskConfig,
    layout: Layout,
    dataset: Dataset | None,
    found: Findings,
) -> Task:
    verifier_py: Path | None = None
    has_test_script = _has(layout.tests, TEST_SCRIPT)
    if not config.steps and not has_test_script:
        if _has(layout.tests, PYTHON_VERIFIER):
            verifier_py = folder / "tests" / PYTHON_VERIFIER
        elif dataset is not None:
            verifier_py = dataset.verifier_py
    return Task(
        id=folder.name,
        folder=folder,
        config=config,
        instruction=layout.instruction,
        steps=tuple(
            _step(config, layout, number) for number in range(len(config.steps))
        ),
        tests=layout.tests.path if layout.tests else None,
        solution=layout.solution.path if layout.solution else None,
        environment=layout.environment,
        verifier_py=verifier_py,
        task_data=layout.task_data,
        dataset=dataset,
        warnings=found.lines,
        excluded=layout.excluded,
        has_test_script=has_test_script,
        has_tests_dockerfile=layout.has_tests_dockerfile,
        has_solve_script=_has(layout.solution, SOLVE_SCRIPT),
        answer=layout.answer,
        has_dockerfile=layout.has_dockerfile,
        compose_file=layout.compose_file,
    )


def _step(config: TaskConfig, layout: Layout, number: int) -> StepFiles:
    step = config.steps[number]
    files = layout.steps[step.name]
    return StepFiles(
        config=step,
        folder=files.folder,
        instruction=files.instruction or "",
        workdir=files.workdir,
        setup=files.has_setup,
        tests=files.tests.path if files.tests else None,
        solution=files.solution.path if files.solution else None,
        trajectory=files.trajectory,
        has_solve_script=_has(files.solution, SOLVE_SCRIPT),
    )


def _has(entry: Input | None, name: str) -> bool:
    return entry is not None and entry.has(name)
