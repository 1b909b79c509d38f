"""From a record of the context to the sandbox that files go into or come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_harbor.errors import SandboxLost, StepError
from pytest_harbor.graphs.context import DeployedAgent, DeployedEnv

if TYPE_CHECKING:
    from pytest_harbor.graphs.steps.api import StepRun
    from pytest_harbor.sandboxes.api import Sandbox


def sandbox_of(record: DeployedAgent | DeployedEnv, run: StepRun) -> Sandbox:
    """The sandbox of a deployed agent or env.

    Raises:
        StepError: it has none.
        SandboxLost: it was stopped.
    """
    if isinstance(record, DeployedAgent):
        what = f"agent '{record.agent_name}'"
    else:
        what = f"env '{record.env_id}'"
    instance = run.instance(record.instance_id)
    if instance is None or instance.sandbox is None:
        raise StepError(f"{what} has no sandbox of this run")
    if instance.is_stopped:
        raise SandboxLost(f"the sandbox of {what} is gone: it {instance.death}")
    return instance.sandbox
