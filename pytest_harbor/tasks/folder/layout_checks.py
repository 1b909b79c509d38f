"""Refuse a task folder for the files that it lacks, or has where nothing reads them."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.folder.dataset import TASK_FILE, Dataset
from pytest_harbor.tasks.folder.inputs import Input
from pytest_harbor.tasks.folder.layout import (
    DOCKERFILE,
    PYTHON_VERIFIER,
    SOLVE_SCRIPT,
    TEST_SCRIPT,
    TRAJECTORY,
    Layout,
)
from pytest_harbor.tasks.folder.model import StepConfig, TaskConfig
from pytest_harbor.tasks.folder.modes import (
    builds_from_tests,
    declared_mode,
    verifier_environment,
)
from pytest_harbor.tasks.folder.names import folded


def check_layout(
    config: TaskConfig,
    layout: Layout,
    dataset: Dataset | None,
    found: Findings,
    *,
    is_multi_step: bool,
) -> None:
    """Refuse what a folder lacks: X02, X03, X04's clear case, X07 to X10."""
    if is_multi_step:
        _check_step_names(config, found)
        for step in config.steps:
            _check_step_folder(step, layout, dataset, found)
        for name in layout.other_steps:
            found.warn(f"steps/{name}/: no [[steps]] table names it, so it is not run")
    else:
        _check_single_step(config, layout, dataset, found)

    for name, entry, script in _scripts(layout):
        if entry is not None and script in entry.files and not entry.has(script):
            found.problem(f"{name}/.harborignore", f"must not leave out {script}")
    if (
        layout.has_root_dockerfile
        and layout.environment is None
        and not config.environment.docker_image
    ):
        found.problem(
            DOCKERFILE,
            "lies at the task's root, where nothing reads it: move it, with the files"
            " it copies, to environment/",
            "X04",
        )


def _check_single_step(
    config: TaskConfig, layout: Layout, dataset: Dataset | None, found: Findings
) -> None:
    if layout.instruction is None:
        found.problem(
            "instruction.md", "is missing; write down what the agent is to do", "X02"
        )
    has_verifier = layout.tests is not None and (
        TEST_SCRIPT in layout.tests.files or layout.tests.has(PYTHON_VERIFIER)
    )
    if not (
        has_verifier
        or (dataset is not None and dataset.verifier_py is not None)
        or _image_brings_tests(config, layout)
    ):
        found.problem("tests/test.sh", "no verifier: add tests/test.sh", "X03")
    if layout.has_root_trajectory:
        found.warn(f"{TRAJECTORY}: is not given to the agent; it is ignored")


def _image_brings_tests(config: TaskConfig, layout: Layout) -> bool:
    if declared_mode(config, None) != "separate":
        return False
    environment = verifier_environment(config, None)
    return bool(environment.is_own and environment.config.docker_image) or (
        builds_from_tests(
            config, None, has_tests_dockerfile=layout.has_tests_dockerfile
        )
    )


def _check_step_names(config: TaskConfig, found: Findings) -> None:
    used: set[str] = set()
    for step in config.steps:
        if folded(step.name) in used:
            found.problem(
                f"{TASK_FILE}: [[steps]].name",
                f"step name '{step.name}' is used twice"
                " (upper and lower case count as the same); rename one",
                "X10",
            )
        used.add(folded(step.name))


def _check_step_folder(
    step: StepConfig, layout: Layout, dataset: Dataset | None, found: Findings
) -> None:
    name, files = step.name, layout.steps[step.name]
    if any(problem.where == f"steps/{name}" for problem in found.problems):
        return  # it is there, but leads out of the task folder
    if not files.exists:
        found.problem(
            f"{TASK_FILE}: step '{name}'",
            f"folder steps/{name}/ is missing; a step's folder has the step's name",
            "X07",
        )
        return
    if files.instruction is None:
        found.problem(
            f"steps/{name}/instruction.md",
            f"step '{name}': instruction.md is missing;"
            " write down what the agent is to do",
            "X08",
        )
    if not any(_has_file(entry, TEST_SCRIPT) for entry in (files.tests, layout.tests)):
        python = any(
            _has_file(entry, PYTHON_VERIFIER) for entry in (files.tests, layout.tests)
        ) or (dataset is not None and dataset.verifier_py is not None)
        found.problem(
            f"steps/{name}/tests/test.sh",
            f"step '{name}': no test.sh in steps/{name}/tests/ or tests/; add one"
            + (" (Python verifiers are single-step only)" if python else ""),
            "X09",
        )


def _has_file(entry: Input | None, name: str) -> bool:
    return entry is not None and name in entry.files


def _scripts(layout: Layout) -> Iterator[tuple[str, Input | None, str]]:
    yield "tests", layout.tests, TEST_SCRIPT
    yield "solution", layout.solution, SOLVE_SCRIPT
    for name, step in layout.steps.items():
        yield f"steps/{name}/tests", step.tests, TEST_SCRIPT
        yield f"steps/{name}/solution", step.solution, SOLVE_SCRIPT
