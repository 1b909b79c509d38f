"""A loaded task: what the folder holds, checked, with nothing decided yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_harbor.tasks.folder.dataset import Dataset
from pytest_harbor.tasks.folder.model import StepConfig, TaskConfig


@dataclass(frozen=True)
class StepFiles:
    """What ``steps/<name>/`` holds (spec 1.2). Paths are ``None`` when absent."""

    config: StepConfig
    folder: Path
    instruction: str
    workdir: Path | None
    setup: bool
    """True when ``workdir/setup.sh`` exists."""
    tests: Path | None
    solution: Path | None
    trajectory: Path | None
    has_solve_script: bool = False
    """True when the step's own ``solution/`` has a ``solve.sh``."""

    @property
    def name(self) -> str:
        """The step's name, which is its folder's."""
        return self.config.name


@dataclass(frozen=True)
class Task:
    """One task folder that passed every check of the load (spec 19.6)."""

    id: str
    """The folder's name (spec 1.4)."""
    folder: Path
    config: TaskConfig
    instruction: str | None
    """Canary lines stripped; ``None`` where a multi-step task has none."""
    steps: tuple[StepFiles, ...]
    tests: Path | None
    solution: Path | None
    environment: Path | None
    verifier_py: Path | None
    """``tests/verifier.py``, or the dataset's, when a Python verifier grades."""
    task_data: Mapping[str, object] | None
    dataset: Dataset | None
    warnings: tuple[str, ...]
    """One line each, with file and key."""
    excluded: Mapping[str, frozenset[str]]
    """Per input folder (``tests``, ``steps/a/solution``): paths that ``.harborignore`` drops."""
    has_test_script: bool = False
    """True when the task's ``tests/`` has a ``test.sh``."""
    has_tests_dockerfile: bool = False
    """True when ``tests/`` has a ``Dockerfile`` for the verifier's sandbox."""
    has_solve_script: bool = False
    """True when the task's ``solution/`` has a ``solve.sh``."""
    answer: str | None = None
    """Text of ``solution/answer.md`` where there is no ``solve.sh`` (spec 13)."""
    has_dockerfile: bool = False
    """True when ``environment/Dockerfile`` exists."""
    compose_file: Path | None = None
    """``environment/docker-compose.yaml``; the ``.yml`` spelling is task data."""

    @property
    def is_multi_step(self) -> bool:
        """True with at least one ``[[steps]]`` table (spec 1.2)."""
        return bool(self.steps)
