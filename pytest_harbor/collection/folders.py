"""Collect task folders: one :class:`TaskFolder` each, never anything inside it."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.guard import TASK_FILE
from pytest_harbor.collection.items import (
    BrokenTask,
    Episode,
    EpisodeFailed,
    TaskNode,
    episode,
    items_of,
    printable_id,
)
from pytest_harbor.collection.loading import datasets, load
from pytest_harbor.collection.names import shown
from pytest_harbor.errors import TaskLoadError

if TYPE_CHECKING:
    from pytest_harbor.tasks.folder.task import Task


class TaskFolder(TaskNode, pytest.File):
    """A folder with ``task.toml``.

    A ``File``, not a ``Directory``: pytest imports the ``conftest.py`` of every
    ``Directory`` node, and a task's own is not to run on the host.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = shown(self.name)

    def collect(self) -> Iterator[pytest.Collector]:
        file = self.path / TASK_FILE
        nodeid = printable_id(f"{self.nodeid}/{TASK_FILE}")
        yield TaskModule.from_parent(self, path=file, nodeid=nodeid)


class TaskModule(TaskNode, pytest.Module):
    """A ``task.toml``: module-scoped fixtures live as long as the task's items."""

    def collect(self) -> Iterator[pytest.Item]:
        folder = self.path.parent
        try:
            task = load(self.config, folder)
        except TaskLoadError as error:
            yield BrokenTask.of_task(self, self.path.parent.name, error)
            return
        self.task = task
        sessions.of(self.config).needs.add(needs_container(task))
        self._describe(task)
        yield from self._episodes(task)

    def istestfunction(self, obj: object, name: str) -> bool:  # noqa: ARG002
        """Our function is a test, whatever ``python_functions`` says."""
        return True

    def _describe(self, task: Task) -> None:
        """Marks and keywords for ``-m`` and ``-k``."""
        config, ours = task.config, task.config.pytest_harbor
        self.add_marker(
            pytest.mark.harbor(
                task=task.id, difficulty=config.difficulty, category=config.category
            )
        )
        self.extra_keyword_matches.update({task.id, *config.tags})
        if config.category:
            self.extra_keyword_matches.add(config.category)
        if config.task is not None and config.task.name:
            self.extra_keyword_matches.add(config.task.name)
        for name in ours.markers:
            self.add_marker(name)
        if ours.skip:
            self.add_marker(pytest.mark.skip(reason=ours.skip))
        if ours.timeout and self.config.pluginmanager.hasplugin("timeout"):
            self.add_marker(pytest.mark.timeout(ours.timeout))

    def _episodes(self, task: Task) -> Iterator[pytest.Item]:
        function = cast("types.FunctionType", episode)
        for made in items_of(self, Episode, function, task.id):
            if task.config.pytest_harbor.xfail and not self._must_miss(made):
                made.add_marker(_xfail(task.config.pytest_harbor.xfail))
            yield made

    def _must_miss(self, item: pytest.Item) -> bool:
        """Doing nothing, under validation: no bug of the task's solution excuses it."""
        if not sessions.of(self.config).settings.validate:
            return False
        params = getattr(getattr(item, "callspec", None), "params", {})
        return params.get("harbor_agent") == "nop"


def _xfail(reason: str) -> pytest.MarkDecorator:
    # Only a failing reward is expected; a broken sandbox stays an error.
    return pytest.mark.xfail(reason=reason, raises=EpisodeFailed)


class DatasetFile(pytest.File):
    """A ``dataset.toml`` with problems."""

    problems: tuple[str, ...] = ()

    def collect(self) -> Iterator[pytest.Item]:
        yield BrokenTask.from_parent(self, name=self.path.name, problems=self.problems)


def collect_dataset(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A collector for a ``dataset.toml`` that has problems and tasks below it."""
    known = datasets(parent.config)
    if not known.folders(path.parent):
        return None  # somebody else's file of that name
    problems = known.problems(path.parent)
    if not problems:
        return None
    sessions.of(parent.config).tasks_seen = True
    collector: DatasetFile = DatasetFile.from_parent(parent, path=path)
    collector.problems = tuple(str(problem) for problem in problems)
    return collector


def needs_container(task: Task) -> bool:
    """Whether ``--harbor-sandbox auto`` means Docker for a task; looks at files only.

    As ``EpisodePlan.needs_container``, for the header, without a plan per task.
    """
    from pytest_harbor.tasks.folder.modes import (
        builds_from_tests,
        declared_mode,
        verifier_environment,
    )

    config = task.config
    if config.environment.docker_image or task.has_dockerfile or task.compose_file:
        return True
    return any(
        declared_mode(config, step) == "separate"
        and (
            verifier_environment(config, step).config.docker_image
            or builds_from_tests(
                config, step, has_tests_dockerfile=task.has_tests_dockerfile
            )
        )
        for step in config.steps or (None,)
    )
