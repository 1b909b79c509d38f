"""``teardown_sandboxes``: stops what a run deployed, before its end (spec 10.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_harbor.errors import NotDeployed
from pytest_harbor.graphs.context import Append
from pytest_harbor.tasks.steps.model import TeardownSandboxes

if TYPE_CHECKING:
    from pytest_harbor.graphs.instances import Instance
    from pytest_harbor.graphs.steps.api import StepRun


async def teardown_sandboxes(step: TeardownSandboxes, run: StepRun) -> None:
    """Stop the named instances, all at once. Never fails: what goes wrong is a warning.

    Their records stay; a later step that needs such a sandbox fails.
    """
    instances = list(_named(step, run))
    await run.dispose(*instances)
    run.write(
        *(
            Append("torn_down_sandbox_ids", instance.sandbox.id)
            for instance in instances
            if instance.is_stopped and instance.sandbox is not None
        )
    )


def _named(step: TeardownSandboxes, run: StepRun) -> Iterator[Instance]:
    context = run.context
    finders = (
        (step.agent_names, context.agent),
        (step.env_ids, context.env),
        (step.sandbox_names, context.sandbox),
    )
    for names, find in finders:
        for name in names:
            try:
                record = find(name)
            except NotDeployed as error:
                run.warn(str(error))
                continue
            instance = run.instance(record.instance_id)
            if instance is None:
                run.warn(f"'{name}' runs in no sandbox of this run")
            elif instance.is_stopped:
                run.warn(f"{instance.what} was stopped before")
            else:
                yield instance
