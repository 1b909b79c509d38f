"""``deploy_agent``: an A2A agent in a sandbox of its own, with tools and skills (spec 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_harbor.errors import (
    NotDeployed,
    StepError,
    TaskRefused,
    UnsupportedByAgent,
)
from pytest_harbor.graphs.agents import launch_of
from pytest_harbor.graphs.context import Change, DefaultModel, DeployedAgent, RunContext
from pytest_harbor.graphs.servers import url_from
from pytest_harbor.graphs.turns import connect
from pytest_harbor.tasks.folder.templates import resolve
from pytest_harbor.tasks.steps.model import DeployAgent, Skill, is_live_url

if TYPE_CHECKING:
    from pytest_harbor.graphs.instances import AgentLaunch, Instance
    from pytest_harbor.graphs.steps.api import StepRun
    from pytest_harbor.protocols.a2a import AgentConnection
    from pytest_harbor.tasks.steps.bundle import Bundle


@dataclass(frozen=True)
class Tools:
    """An env whose tools the agent gets."""

    url: str
    """MCP endpoint, as this process reaches it."""
    name: str | None = None
    """The name of its card; ``None`` for one that only has a URL."""


async def deploy_agent(step: DeployAgent, run: StepRun) -> None:
    """Start the agent, give it what the step names, and write its ``DeployedAgent``.

    Raises:
        NotDeployed: an env is neither deployed nor live; before any sandbox exists.
        AlreadyDeployed: the name is taken.
        StepError: no agent of that ID or version.
        ServerNotReady: no card in time, or it ended; with the log's tail.
        UnsupportedByAgent: it takes no MCP servers or skills, and the step has some.
        ServerRefused, ProtocolError: it refused what it was given.
        SandboxError: as ``Provider.start``.
    """
    tools = [find_tools(env_id, run.context, run.bundle) for env_id in step.env_ids]
    with run.reserve("agent", step.agent_name):
        instance = await run.start_agent(_launch(step, run))
        try:
            card = await _set_up(step, run, instance, tools)
        except BaseException:
            await run.dispose(instance)
            raise
        changes: list[Change] = [_record(step, instance, card)]
        models = run.settings.models
        if default := models.agent or models.default:
            changes.insert(0, DefaultModel(default))
        run.write(*changes)


def find_tools(env_id: str, context: RunContext, bundle: Bundle) -> Tools:
    """The env of an entry of ``env_ids``: deployed, registered as live, or a URL.

    Raises:
        NotDeployed: none of them.
    """
    try:
        env = context.env(env_id)
    except NotDeployed:
        entry = None if is_live_url(env_id) else bundle.env(env_id)
        url = entry.url if entry is not None else env_id
        if url is None or not is_live_url(url):
            raise
        return Tools(url, None if entry is None else entry.environment_name)
    return Tools(env.mcp_url, env.mcp_server_name)


def _launch(step: DeployAgent, run: StepRun) -> AgentLaunch:
    agent_id = step.a2a_agent_id or run.settings.default_agent
    if agent_id is None:
        raise StepError("no agent: give a2a_agent_id, or set harbor_default_agent")
    env = resolve(step.env_vars, step.id, run.environ)
    if env.missing:
        names = ", ".join(name for name, _ in env.missing)
        raise TaskRefused(f"env_vars needs {names}, which is not set")
    run.masker.add(*env.secrets)  # a step of a Python test: no task told of it before
    return launch_of(step, agent_id, run.settings, env.values)


async def _set_up(
    step: DeployAgent, run: StepRun, instance: Instance, tools: list[Tools]
) -> Mapping[str, Any]:
    """Steps 4 to 6 of the format's order; returns the agent's card."""
    async with await connect(instance.url, instance) as agent:
        with _told_of(instance, "MCP servers, so env_ids must be empty"):
            for env in tools:
                url = await url_from(env.url, instance.sandbox)
                await agent.add_mcp_server(url, env.name)
        with _told_of(instance, "skills, so the step must have none"):
            for skill in step.skills:
                text = await _skill_text(skill, run)
                await agent.add_skill(skill.name, skill.description, text)
        await _configure(step, run, agent)
        return agent.card.raw


@contextmanager
def _told_of(instance: Instance, what: str) -> Iterator[None]:
    """Say in the step's own words what an agent does not take."""
    try:
        yield
    except UnsupportedByAgent as error:
        text = f"{instance.what} takes no {what}: {error}"
        raise UnsupportedByAgent(text) from error


async def _configure(step: DeployAgent, run: StepRun, agent: AgentConnection) -> None:
    if step.system_prompt is not None:
        sent = await agent.configure({"system_prompt": step.system_prompt})
        if "system_prompt" not in sent:
            run.warn(
                f"agent '{step.agent_name}' takes no system prompt; the step's was not set"
            )
    await agent.configure(
        {
            "name": step.agent_name,
            "description": step.agent_description,
            "role": step.role,
        }
    )


async def _skill_text(skill: Skill, run: StepRun) -> str:
    if skill.skill_md is not None:
        return skill.skill_md
    assert skill.object_url is not None
    try:
        content = await run.store.get(skill.object_url)
    except (OSError, ValueError) as error:
        raise StepError(f"skill '{skill.name}' cannot be read: {error}") from error
    return content.decode(errors="replace")


def _record(
    step: DeployAgent, instance: Instance, card: Mapping[str, Any]
) -> DeployedAgent:
    sandbox = instance.sandbox
    policy = step.network_policy
    agent_id = {} if step.a2a_agent_id is None else {"a2a_agent_id": step.a2a_agent_id}
    return DeployedAgent(
        agent_name=step.agent_name,
        a2a_url=instance.url,
        instance_id=instance.instance_id,
        sandbox_id=None if sandbox is None else sandbox.id,
        sandbox_type=None if sandbox is None else sandbox.provider,
        a2a_card=card,
        role=step.role,
        network_policy=None if policy is None else policy.model_dump(mode="json"),
        metadata={**step.metadata, **agent_id, "deploy_step_id": step.id},
        created_at_utc=instance.created_at_utc,
        expires_at_utc=instance.expires_at_utc,
    )
