"""From a task folder to a task: load, dataset, the ``modify_task`` hook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pytest_harbor.collection import names
from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.datasets import Datasets
from pytest_harbor.collection.guard import TASK_FILE
from pytest_harbor.collection.warnings import warn
from pytest_harbor.errors import Problem, TaskLoadError

if TYPE_CHECKING:
    from pytest_harbor.tasks.folder.task import Task

_DATASETS: Final = pytest.StashKey[Datasets]()
_WARNED: Final = pytest.StashKey[set[str]]()


def datasets(config: pytest.Config) -> Datasets:
    """The datasets of this session."""
    return config.stash.setdefault(_DATASETS, Datasets(config.rootpath))


def load(config: pytest.Config, folder: Path) -> Task:
    """Load a task folder with everything that applies to it.

    Raises:
        TaskLoadError: every problem found.
    """
    from pytest_harbor.tasks.folder.load import load_task

    _check_name(folder, config.rootpath)
    dataset = datasets(config).of(folder)
    strict = sessions.of(config).settings.strict
    task = load_task(folder, dataset=dataset, strict=strict)
    _check_markers(config, task)
    _show_warnings(config, task)
    return _modified(config, task)


def _modified(config: pytest.Config, task: Task) -> Task:
    from pytest_harbor.tasks.folder.task import Task

    try:
        changed = config.hook.pytest_harbor_modify_task(task=task, config=config)
    except Exception as error:
        what = f"failed: {type(error).__name__}: {error}"
        raise _bad_modification(config, task, what) from error
    if changed is None:
        return task
    if not isinstance(changed, Task):
        what = f"returned {changed!r}; expected a changed copy of the task, or None"
        raise _bad_modification(config, task, what)
    return changed


def _bad_modification(config: pytest.Config, task: Task, what: str) -> TaskLoadError:
    hook = config.hook.pytest_harbor_modify_task
    whose = ", ".join(one.plugin_name for one in hook.get_hookimpls())
    problem = Problem("", f"pytest_harbor_modify_task in {whose} {what}")
    return TaskLoadError(str(task.folder), (problem,))


def _check_name(folder: Path, root: Path) -> None:
    if what := names.problem(folder, root):
        raise TaskLoadError(names.shown(str(folder)), (Problem("", what),))


def _check_markers(config: pytest.Config, task: Task) -> None:
    wanted = task.config.pytest_harbor.markers
    if not wanted:
        return
    known = {_marker_name(line) for line in config.getini("markers")}
    problems = tuple(
        Problem(
            "task.toml: [metadata.pytest_harbor].markers",
            f"marker {name!r} is not registered; add it to pytest's ini key 'markers'",
        )
        for name in wanted
        if name not in known
    )
    if problems:
        raise TaskLoadError(str(task.folder), problems)


def _marker_name(line: str) -> str:
    return line.split(":", maxsplit=1)[0].split("(", maxsplit=1)[0].strip()


def _show_warnings(config: pytest.Config, task: Task) -> None:
    """Show each text once, at the first task that has it.

    In a dataset of thousands the same unknown key is everywhere; each record still
    carries the warnings of its task.
    """
    shown = config.stash.setdefault(_WARNED, set())
    told = [(text, task.folder / TASK_FILE) for text in task.warnings]
    if task.dataset is not None:
        told += [(text, task.dataset.path) for text in task.dataset.warnings]
    for text, place in told:
        if text not in shown:
            shown.add(text)
            warn(config, text, place)
