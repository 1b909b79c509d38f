"""Collect step tasks: one item per JSON file and attempt. Reads files and runs nothing."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest

from pytest_harbor.collection import offers
from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.items import (
    BrokenTask,
    StepTaskItem,
    items_of,
    printable_id,
    step_task,
)
from pytest_harbor.collection.names import SEPARATORS
from pytest_harbor.collection.warnings import warn
from pytest_harbor.errors import Problem, SettingsError, TaskLoadError
from pytest_harbor.tasks.steps.files import bundle_root, task_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_harbor.graphs.steps.api import StepType
    from pytest_harbor.tasks.steps.bundle import Bundle
    from pytest_harbor.tasks.steps.task import StepTask

_BUNDLES: Final = pytest.StashKey["dict[Path, Bundle]"]()
_STEP_TYPES: Final = pytest.StashKey["Mapping[str, StepType]"]()
STEP_TYPES_HOOK: Final = "pytest_harbor_step_types"


class StepTaskFile(pytest.Module):
    """A JSON file of steps: module-scoped fixtures live as long as the task's items."""

    task: StepTask

    def collect(self) -> Iterator[pytest.Item]:
        try:
            self.task = load(self.config, self.path)
        except TaskLoadError as error:
            yield BrokenTask.of_task(self, task_name(self.path), error)
            return
        self.add_marker(pytest.mark.harbor(task=self.task.name))
        self.extra_keyword_matches.add(self.task.name)
        for warning in self.task.warnings:
            warn(self.config, warning, self.path)
        function = cast("types.FunctionType", step_task)
        yield from items_of(self, StepTaskItem, function, self.task.name)

    def istestfunction(self, obj: object, name: str) -> bool:  # noqa: ARG002
        """Our function is a test, whatever ``python_functions`` says."""
        return True


def load(config: pytest.Config, file: Path) -> StepTask:
    """Load a step task with the placeholders, overrides and step types of this run.

    Raises:
        TaskLoadError: every problem found.
    """
    from pytest_harbor.tasks.steps.load import load_step_task

    name = task_name(file)
    for sign in SEPARATORS:
        if sign in name:
            what = f"file name has {sign!r}, which pytest's node IDs cannot hold"
            raise TaskLoadError(str(file), (Problem("", f"{what}; rename the file"),))
    settings = sessions.of(config).settings
    try:
        types_of_project = step_types(config)
    except SettingsError as error:
        raise TaskLoadError(str(file), (Problem("", str(error)),)) from error
    return load_step_task(
        file,
        strict=settings.strict,
        seed=settings.seed,
        overrides=settings.overrides,
        step_types={name: one.model for name, one in types_of_project.items()},
        bundle=bundle(config, bundle_root(file)),
    )


def step_types(config: pytest.Config) -> Mapping[str, StepType]:
    """Step types of the project's hooks, by name.

    Raises:
        SettingsError: an implementation raised or offers something else.
    """
    known = config.stash.get(_STEP_TYPES, None)
    if known is None:
        from pytest_harbor.graphs.steps.api import StepType

        known = offers.collect(config, STEP_TYPES_HOOK, also=StepType, factories=False)
        config.stash[_STEP_TYPES] = known
    return known


def bundle(config: pytest.Config, root: Path) -> Bundle:
    """The bundle in a folder, read once for all of its tasks."""
    from pytest_harbor.tasks.steps.bundle import Bundle

    bundles = config.stash.setdefault(_BUNDLES, {})
    if root not in bundles:
        bundles[root] = Bundle(root)
    return bundles[root]


def collect_step_file(path: Path, parent: pytest.Collector) -> pytest.Collector:
    """A collector for a file that is a step task by its place."""
    sessions.of(parent.config).tasks_seen = True
    nodeid = printable_id(
        f"{parent.nodeid}/{path.name}" if parent.nodeid else path.name
    )
    collector: pytest.Collector = StepTaskFile.from_parent(
        parent, path=path, nodeid=nodeid
    )
    return collector
