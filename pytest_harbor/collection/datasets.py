"""Which dataset a task folder belongs to, looked up once per folder of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_harbor.errors import Problem, TaskLoadError

if TYPE_CHECKING:
    from pytest_harbor.tasks.folder.dataset import Dataset


class Datasets:
    """The datasets of a session. ``rootpath`` bounds the search upwards."""

    def __init__(self, rootpath: Path) -> None:
        self._rootpath = rootpath
        self._roots: dict[Path, Path | None] = {}
        self._loaded: dict[Path, Dataset | TaskLoadError] = {}
        self._folders: dict[Path, list[Path]] = {}
        self._duplicates: dict[Path, dict[Path, Path]] = {}

    def of(self, task: Path) -> Dataset | None:
        """The dataset that ``task`` lies in, if any.

        Raises:
            TaskLoadError: the dataset has problems, or the task's ID is taken in
                it (X06).
        """
        root = self._root(task)
        if root is None:
            return None
        dataset = self.load(root)
        if dataset.path.is_file() and (other := self._first_of_name(root, task)):
            from pytest_harbor.tasks.folder.dataset import duplicate_problem

            problem = duplicate_problem(task, other, root)
            raise TaskLoadError(str(task), (problem,))
        return dataset

    def problems(self, root: Path) -> tuple[Problem, ...]:
        """What is wrong with the ``dataset.toml`` in ``root``, its task tables included."""
        from pytest_harbor.tasks.folder.dataset import override_problems

        try:
            dataset = self.load(root)
        except TaskLoadError as error:
            return error.problems
        return override_problems(dataset, self.folders(root))

    def load(self, root: Path) -> Dataset:
        """The dataset at ``root``. Raises TaskLoadError, each time the same."""
        if root not in self._loaded:
            from pytest_harbor.tasks.folder.dataset import load_dataset

            try:
                self._loaded[root] = load_dataset(root)
            except TaskLoadError as error:
                self._loaded[root] = error
        found = self._loaded[root]
        if isinstance(found, TaskLoadError):
            raise TaskLoadError(found.folder, found.problems)
        return found

    def folders(self, root: Path) -> list[Path]:
        """The task folders below ``root``; reads no file."""
        if root not in self._folders:
            from pytest_harbor.tasks.folder.dataset import find_tasks

            self._folders[root] = find_tasks(root)
        return self._folders[root]

    def _first_of_name(self, root: Path, task: Path) -> Path | None:
        if root not in self._duplicates:
            from pytest_harbor.tasks.folder.dataset import duplicate_ids

            self._duplicates[root] = dict(duplicate_ids(self.folders(root)))
        return self._duplicates[root].get(task)

    def _root(self, task: Path) -> Path | None:
        if task.parent not in self._roots:
            from pytest_harbor.tasks.folder.dataset import find_dataset_root

            # Rooted inside the dataset (a task named without any pytest
            # configuration around), pytest's root is no bound.
            inside = self._rootpath in task.parents
            stop = self._rootpath if inside else Path(task.anchor)
            self._roots[task.parent] = find_dataset_root(task, stop=stop)
        return self._roots[task.parent]
