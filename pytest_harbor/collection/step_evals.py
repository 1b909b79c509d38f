"""``pytest bundle/evals/nightly.toml``: the tasks that an eval lists, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.items import BrokenTask, printable_id
from pytest_harbor.collection.step_files import StepTaskFile
from pytest_harbor.collection.warnings import warn
from pytest_harbor.errors import TaskLoadError


class EvalFile(pytest.File):
    """A list of tasks. Their items have the IDs that they have without it."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        from pytest_harbor.tasks.steps.evals import load_eval

        strict = sessions.of(self.config).settings.strict
        try:
            listed = load_eval(self.path, strict=strict)
        except TaskLoadError as error:
            problems = tuple(error.message.splitlines())
            yield BrokenTask.from_parent(self, name=self.path.stem, problems=problems)
            return
        for warning in listed.warnings:
            warn(self.config, warning, self.path)
        for file in listed.tasks:
            place = os.path.relpath(file, self.config.rootpath).replace(os.sep, "/")
            yield StepTaskFile.from_parent(self, path=file, nodeid=printable_id(place))


def collect_eval(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A collector for an eval of a bundle; ``None`` for any other file."""
    from pytest_harbor.tasks.steps.evals import is_eval_file

    if not is_eval_file(path):
        return None
    sessions.of(parent.config).tasks_seen = True
    collector: pytest.Collector = EvalFile.from_parent(parent, path=path)
    return collector
