"""Seeds and overrides of the command line that no collected step task takes up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.items import BrokenTask, StepTaskItem
from pytest_harbor.collection.step_files import StepTaskFile
from pytest_harbor.collection.warnings import warn
from pytest_harbor.tasks.steps.overrides import STEP_PARAMS

if TYPE_CHECKING:
    from pytest_harbor.tasks.steps.task import StepTask


def warn_of_idle_choices(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Name a seed or an override that changes nothing, for it may be misspelt.

    Silent where a file could not be loaded: it may be the one that takes it up.
    """
    settings = sessions.of(config).settings
    if not settings.seed and not settings.overrides:
        return
    files = {
        file
        for item in items
        if isinstance(item, StepTaskItem | BrokenTask)
        and (file := item.getparent(StepTaskFile)) is not None
    }
    tasks = [file.task for file in files if hasattr(file, "task")]
    if not tasks or len(tasks) < len(files):
        return
    for line in idle_choices(tasks, settings.seed, settings.overrides):
        warn(config, line, config.rootpath)


def idle_choices(
    tasks: Sequence[StepTask], seed: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Iterator[str]:
    """One line for each choice that no step of the tasks takes up."""
    from pytest_harbor.tasks.steps.model import CollectArtifacts
    from pytest_harbor.tasks.steps.order import did_you_mean

    steps = [step for task in tasks for step in task.source if isinstance(step, dict)]
    ids = sorted({str(step.get("id")) for step in steps})
    for name, fields in overrides.get(STEP_PARAMS, {}).items():
        if name not in ids:
            what = (
                f"no collected step task has a step '{name}'{did_you_mean(name, ids)}"
            )
            yield f"--harbor-override {name}.{next(iter(fields), '')}: {what}"
    texts = json.dumps([steps, dict(overrides)], ensure_ascii=False, default=str)
    keys = {
        step.artifacts_key
        for task in tasks
        for step in task.steps
        if isinstance(step, CollectArtifacts)
    }
    for key in seed:
        if f"<{key}>" not in texts and key not in keys:
            yield f"--harbor-seed {key}: no collected step task has <{key}> in it"
