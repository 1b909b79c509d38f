"""What a task folder holds, read once, with nothing judged but texts and links."""

# Thousands of folders are read, and a Path object for each name doubles the time.
# ruff: noqa: PTH112, PTH113, PTH114, PTH123

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.folder.inputs import Input, is_inside, read_input
from pytest_harbor.tasks.folder.instruction import instruction_text

TEST_SCRIPT = "test.sh"
SOLVE_SCRIPT = "solve.sh"
SETUP_SCRIPT = "setup.sh"
PYTHON_VERIFIER = "verifier.py"
DOCKERFILE = "Dockerfile"
COMPOSE_FILE = "docker-compose.yaml"
INSTRUCTION = "instruction.md"
TRAJECTORY = "trajectory.json"
TASK_DATA = "task_data.json"
ANSWER = "answer.md"


@dataclass(frozen=True)
class StepLayout:
    """One folder under ``steps/``."""

    folder: Path
    exists: bool = False
    instruction: str | None = None
    workdir: Path | None = None
    has_setup: bool = False
    tests: Input | None = None
    solution: Input | None = None
    trajectory: Path | None = None


@dataclass(frozen=True)
class Layout:
    """The folder's content. Whatever is absent is ``None`` or false."""

    folder: Path
    steps: Mapping[str, StepLayout]
    """By name, for the steps that were asked for."""
    other_steps: tuple[str, ...] = ()
    """Folders under ``steps/`` that no step names."""
    instruction: str | None = None
    tests: Input | None = None
    solution: Input | None = None
    environment: Path | None = None
    has_dockerfile: bool = False
    compose_file: Path | None = None
    has_root_dockerfile: bool = False
    has_root_trajectory: bool = False
    task_data: dict[str, Any] | None = None
    answer: str | None = None

    @property
    def has_tests_dockerfile(self) -> bool:
        """True when ``tests/`` can be built into the verifier's sandbox."""
        return self.tests is not None and self.tests.has(DOCKERFILE)

    @property
    def excluded(self) -> dict[str, frozenset[str]]:
        """Per input folder the paths that ``.harborignore`` drops."""
        inputs = {"tests": self.tests, "solution": self.solution}
        for name, step in self.steps.items():
            inputs[f"steps/{name}/tests"] = step.tests
            inputs[f"steps/{name}/solution"] = step.solution
        return {
            name: entry.excluded
            for name, entry in inputs.items()
            if entry is not None and entry.excluded
        }


def read_layout(folder: Path, step_names: Sequence[str], found: Findings) -> Layout:
    """Read a task folder; unreadable texts and links out go to ``found``."""
    reader = _Reader(str(folder), found)
    entries = reader.entries("")
    tests = reader.input("tests", entries)
    solution = reader.input("solution", entries)
    environment = folder / "environment" if entries.get("environment") else None
    has_dockerfile, compose_file = False, None
    if environment is not None:
        has_dockerfile = os.path.isfile(f"{environment}/{DOCKERFILE}")
        if os.path.isfile(f"{environment}/{COMPOSE_FILE}"):
            compose_file = environment / COMPOSE_FILE

    steps = {name: reader.step(name) for name in step_names}
    return Layout(
        folder=folder,
        steps=steps,
        other_steps=reader.other_steps(steps) if entries.get("steps") else (),
        instruction=reader.text(INSTRUCTION, entries),
        tests=tests,
        solution=solution,
        environment=environment,
        has_dockerfile=has_dockerfile,
        compose_file=compose_file,
        has_root_dockerfile=entries.get(DOCKERFILE) is False,
        has_root_trajectory=entries.get(TRAJECTORY) is False,
        task_data=reader.task_data() if entries.get(TASK_DATA) is False else None,
        answer=reader.answer(solution),
    )


class _Reader:
    """Reads parts of one task folder; where a path leads outside, it says so."""

    def __init__(self, folder: str, found: Findings) -> None:
        self.folder = folder
        self.found = found

    def entries(self, name: str) -> dict[str, bool]:
        """Names of files and folders in a folder, true for a folder.

        A FIFO or device is left out: reading one could wait for ever.
        """
        prefix = f"{name}/" if name else ""
        try:
            with os.scandir(f"{self.folder}/{name}") as entries:
                return {
                    entry.name: entry.is_dir()
                    for entry in entries
                    if (entry.is_symlink() and self._stays(prefix + entry.name))
                    or entry.is_file(follow_symlinks=False)
                    or entry.is_dir(follow_symlinks=False)
                }
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def _stays(self, name: str) -> bool:
        path = f"{self.folder}/{name}"
        if is_inside(path, os.path.realpath(self.folder)):
            return os.path.isfile(path) or os.path.isdir(path)
        top = name.rsplit("/", 1)[-1]
        if top in READ_NAMES or name.startswith("steps/"):
            self.found.problem(
                name,
                f"leaves the task folder (links to {os.path.realpath(path)});"
                " copy what it points at",
                "X23",
            )
        return False

    def input(
        self,
        name: str,
        entries: Mapping[str, bool],
        prefix: str = "",
        *,
        honours_ignore_file: bool = True,
    ) -> Input | None:
        """The walked input folder, or ``None``."""
        if not entries.get(name):
            return None
        return read_input(
            self.folder,
            prefix + name,
            self.found,
            honours_ignore_file=honours_ignore_file,
        )

    def text(
        self, name: str, entries: Mapping[str, bool], prefix: str = ""
    ) -> str | None:
        """The instruction, or ``None`` where there is no such file."""
        if entries.get(name) is not False:
            return None
        try:
            return instruction_text(_content(f"{self.folder}/{prefix}{name}"))
        except UnicodeDecodeError as error:
            self.found.problem(
                prefix + name,
                f"is not UTF-8 (byte {error.start}); save it as UTF-8",
                "X08" if prefix else "X02",
            )
            return ""

    def step(self, name: str) -> StepLayout:
        """One step's folder."""
        prefix = f"steps/{name}/"
        folder = Path(self.folder, "steps", name)
        if not os.path.isdir(folder):
            return StepLayout(folder)
        if os.path.islink(folder) and not is_inside(
            str(folder), os.path.realpath(self.folder)
        ):
            self.found.problem(
                f"steps/{name}", "leaves the task folder; copy what it points at", "X23"
            )
            return StepLayout(folder)

        entries = self.entries(f"steps/{name}")
        workdir = self.input("workdir", entries, prefix, honours_ignore_file=False)
        return StepLayout(
            folder=folder,
            exists=True,
            instruction=self.text(INSTRUCTION, entries, prefix),
            workdir=workdir.path if workdir else None,
            has_setup=workdir is not None and SETUP_SCRIPT in workdir.files,
            tests=self.input("tests", entries, prefix),
            solution=self.input("solution", entries, prefix),
            trajectory=folder / TRAJECTORY
            if entries.get(TRAJECTORY) is False
            else None,
        )

    def other_steps(self, named: Mapping[str, StepLayout]) -> tuple[str, ...]:
        """Folders under ``steps/`` that have no ``[[steps]]`` table."""
        with os.scandir(f"{self.folder}/steps") as entries:
            return tuple(
                sorted(
                    entry.name
                    for entry in entries
                    if entry.name not in named
                    and not entry.name.startswith(".")
                    and entry.is_dir()
                )
            )

    def task_data(self) -> dict[str, Any] | None:
        """``task_data.json``, which must be a JSON object."""
        try:
            data = json.loads(_content(f"{self.folder}/{TASK_DATA}"))
        except ValueError as error:
            self.found.problem(TASK_DATA, f"is not valid JSON: {error}", "X01")
            return None
        if not isinstance(data, dict):
            self.found.problem(TASK_DATA, "must be a JSON object", "X01")
            return None
        return data

    def answer(self, solution: Input | None) -> str | None:
        """The reference answer, where no script is the solution."""
        if solution is None or SOLVE_SCRIPT in solution.files:
            return None
        if not solution.has(ANSWER):
            return None
        content = _content(f"{self.folder}/solution/{ANSWER}")
        return content.decode("utf-8-sig", errors="replace")


# What the loader reads of a task folder; a link elsewhere is nobody's business.
READ_NAMES = frozenset(
    {
        ANSWER,
        DOCKERFILE,
        INSTRUCTION,
        TASK_DATA,
        TRAJECTORY,
        "environment",
        "solution",
        "steps",
        "tests",
        "workdir",
    }
)


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()
