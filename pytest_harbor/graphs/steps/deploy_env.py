"""``deploy_env``: an env started as a new instance (spec 4)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_harbor.errors import ServerNotReady
from pytest_harbor.graphs.context import DeployedEnv
from pytest_harbor.graphs.envs import MCP_PATH, find_env, plan_env
from pytest_harbor.protocols.addresses import join
from pytest_harbor.protocols.data_plane import TOKEN_VARIABLE, read_card
from pytest_harbor.tasks.steps.entries import LOCAL_VERSION, EnvEntry
from pytest_harbor.tasks.steps.model import DeployEnv

if TYPE_CHECKING:
    from pytest_harbor.graphs.instances import Instance
    from pytest_harbor.graphs.steps.api import StepRun
    from pytest_harbor.protocols.data_plane import EnvCard


async def deploy_env(step: DeployEnv, run: StepRun) -> None:
    """Start the env, check what it offers, and write its ``DeployedEnv``.

    Raises:
        AlreadyDeployed: the run has an instance of this env, or is starting one.
        StepError: no env of that ID or version, or nothing starts it in this sandbox.
        ServerNotReady: it did not come up in time, or is not what it should be.
        SandboxError: as ``Provider.start``.
    """
    with run.reserve("env", step.env_id):
        entry = find_env(step.env_id, step.env_version, run.bundle)
        plan = plan_env(step, entry, run.settings)
        plan = replace(plan, env={**plan.env, TOKEN_VARIABLE: run.data_token})
        instance = await run.start_server(plan)
        try:
            card = await read_card(instance.url)
            mcp_url = join(instance.url, MCP_PATH) if card is None else card.mcp_url
            await _check(instance, entry, card, mcp_url)
        except BaseException:
            await run.dispose(instance)
            raise
        run.write(_record(step, entry, instance, card, mcp_url))


async def _check(
    instance: Instance, entry: EnvEntry, card: EnvCard | None, mcp_url: str
) -> None:
    """Raises ServerNotReady for an env that breaks the rules of spec 4."""
    from pytest_harbor.protocols import mcp

    wanted = entry.environment_name
    if card is not None and wanted is not None and card.name != wanted:
        raise ServerNotReady(
            f"{instance.what}: its card has the name '{card.name}', its env.toml the "
            f"environment_name '{wanted}'; they must be equal"
        )
    async with mcp.connect(mcp_url) as session:
        tools = await session.list_tools()
    if not tools:
        raise ServerNotReady(
            f"{instance.what} lists no MCP tool; it needs at least one"
        )
    if repeated := mcp.repeated_names(tools):
        raise ServerNotReady(
            f"{instance.what} lists more than one tool named {', '.join(repeated)}"
        )


def _record(
    step: DeployEnv,
    entry: EnvEntry,
    instance: Instance,
    card: EnvCard | None,
    mcp_url: str,
) -> DeployedEnv:
    sandbox = instance.sandbox
    own_name = entry.environment_name or entry.name
    return DeployedEnv(
        env_id=step.env_id,
        env_version=LOCAL_VERSION,
        instance_id=instance.instance_id,
        mcp_url=mcp_url,
        mcp_server_name=own_name if card is None else card.name,
        environment_card=None if card is None else card.raw,
        environment_card_url=None if card is None else card.card_url,
        sandbox_id=None if sandbox is None else sandbox.id,
        sandbox_type=None if sandbox is None else sandbox.provider,
        sandbox_ids=() if sandbox is None else (sandbox.id,),
        metadata={**step.metadata, "deploy_step_id": step.id},
        created_at_utc=instance.created_at_utc,
        expires_at_utc=instance.expires_at_utc,
    )
