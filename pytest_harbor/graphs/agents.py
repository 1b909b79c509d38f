"""From an agent's ID to a running agent (spec 1.2, 6): the bundle's, and registered ones."""

from __future__ import annotations

import difflib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_harbor.errors import (
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
    StepError,
)
from pytest_harbor.graphs.instances import AgentLaunch, Instance
from pytest_harbor.graphs.servers import Listening, PythonNeed, ServerPlan
from pytest_harbor.protocols.agent_card import TOKEN_VARIABLE
from pytest_harbor.sandboxes.choose import DOCKER, LOCAL, provider_name
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Limits
from pytest_harbor.tasks.steps.entries import (
    LOCAL_VERSION,
    AgentEntry,
    EnvEntry,
    ServerEntry,
)
from pytest_harbor.tasks.steps.model import DeployAgent, DeployEnv

if TYPE_CHECKING:
    from pytest_harbor.graphs.deployments import Starter
    from pytest_harbor.graphs.steps.api import RunSettings
    from pytest_harbor.tasks.steps.bundle import Bundle

AGENT_LISTENING: Final = Listening("A2A_PORT", "A2A_HOST", 8000)
WORKDIR: Final = "/app"
"""Where an agent's own files are, in sandboxes without an image."""
MODEL_VARIABLES: Final = (
    "LITELLM_BASE_URL",
    "LITELLM_API_KEY",
    "LITELLM_EXTRA_HEADERS",
)
"""Variables of the runner that every agent's process gets (spec 12)."""


class AgentSource(ABC):
    """A registered agent: where an ID leads to that no folder of the bundle has."""

    @abstractmethod
    def provider(self, choice: str) -> str:
        """The sandbox provider it needs, where ``choice`` is wanted (``auto``, a name)."""

    def check(self, launch: AgentLaunch) -> None:  # noqa: B027 - optional
        """Refuse, before anything starts, what cannot work. Raises StepError."""

    @abstractmethod
    def spec(self, launch: AgentLaunch, provider: str) -> EnvironmentSpec:
        """What its sandbox is made of. Raises StepError: it cannot be made there."""

    @abstractmethod
    async def start(
        self, launch: AgentLaunch, starter: Starter, *, ready_seconds: float
    ) -> Instance:
        """Start it and wait for its card.

        What it starts is registered with ``starter`` before it can leak, and stopped
        here when it does not come up. Raises as ``StepRun.start_agent``.
        """


@dataclass(frozen=True)
class ServerAgent(AgentSource):
    """An agent that is an A2A server in a sandbox, as the folders of a bundle are."""

    entry: AgentEntry

    def provider(self, choice: str) -> str:
        return provider_of(self.entry, choice)

    async def start(
        self, launch: AgentLaunch, starter: Starter, *, ready_seconds: float
    ) -> Instance:
        token = new_token(starter)
        plan = self.plan(launch, ready_seconds)
        plan = replace(plan, env={**plan.env, TOKEN_VARIABLE: token})
        server = await starter.start_server(plan)
        server.token = token
        return server

    def spec(self, launch: AgentLaunch, provider: str) -> EnvironmentSpec:
        return _with_policy(spec_of(self.entry, provider, launch.limits), launch)

    def check(self, launch: AgentLaunch) -> None:
        if launch.version not in (None, LOCAL_VERSION):
            raise StepError(
                f"agent '{launch.agent_id}' has version {LOCAL_VERSION} only, not "
                f"{launch.version}"
            )

    def plan(self, launch: AgentLaunch, ready_seconds: float = 300.0) -> ServerPlan:
        """The server to start. Raises StepError as :meth:`check`, :meth:`spec`."""
        self.check(launch)
        where = provider_of(self.entry, launch.sandbox_type or "auto")
        return ServerPlan(
            what=f"agent '{launch.name}'",
            slug=f"agent-{launch.name}",
            provider=where,
            spec=self.spec(launch, where),
            listening=AGENT_LISTENING,
            probe=answers_its_card,
            command=command_of(self.entry, where),
            python=python_of(self.entry, where),
            env=launch.env,
            ready_seconds=ready_seconds,
            ttl_seconds=launch.ttl_seconds,
            hint=f"add a CMD to {self.entry.dockerfile or self.entry.image}",
        )


def new_token(starter: Starter) -> str:
    """The token of one agent: whoever shares its network must not speak for the engine."""
    token = secrets.token_urlsafe(24)
    starter.surroundings.masker.add(token)
    return token


def _with_policy(spec: EnvironmentSpec, launch: AgentLaunch) -> EnvironmentSpec:
    """The spec with the network that the step asks for; providers refuse what they lack."""
    policy = launch.network_policy
    if policy is None or policy["mode"] == "allow_all":
        return spec
    hosts = (*_strings(policy["allow_hosts"]), *_strings(policy["allow_cidrs"]))
    return replace(spec, network="allowlist", allowed_hosts=hosts)


def _strings(value: object) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else ()


@dataclass(frozen=True)
class _Scripted(ServerAgent):
    """The built-in ``scripted``: its script is in the step's ``env_vars``."""

    def spec(self, launch: AgentLaunch, provider: str) -> EnvironmentSpec:
        spec = super().spec(launch, provider)
        return replace(spec, files=None)  # it has no folder of its own


BUILT_IN: Final[Mapping[str, AgentSource]] = {
    "scripted": _Scripted(
        AgentEntry(
            "scripted",
            folder=Path("/"),
            command=("python", "-m", "pytest_harbor.agents.scripted"),
        )
    )
}
"""Agents of every run. ``scripted`` plays the script in the variable ``SCRIPTED_AGENT``."""


def with_built_in(registered: Mapping[str, AgentSource]) -> dict[str, AgentSource]:
    """Registered agents and the built-in ones; a registered name goes first."""
    return {**BUILT_IN, **registered}


def find_agent(
    agent_id: str, bundle: Bundle, registered: Mapping[str, AgentSource]
) -> AgentSource:
    """The agent of that ID: the bundle's folder, a registered one, a built-in one.

    Raises:
        StepError: there is none; names the nearest.
        TaskLoadError: its folder cannot be used.
    """
    registered = with_built_in(registered)
    if agent_id in registered and agent_id not in bundle.names("agent"):
        return registered[agent_id]
    entry = bundle.agent(agent_id)
    if entry is not None:
        return ServerAgent(entry)
    near = difflib.get_close_matches(agent_id, registered, n=1)
    hint = near[0] if near else bundle.near("agent", agent_id)
    raise StepError(
        f"no agent '{agent_id}', neither in the bundle nor registered"
        + (f" (did you mean '{hint}'?)" if hint else "")
    )


def launch_of(
    step: DeployAgent, agent_id: str, settings: RunSettings, env: Mapping[str, str]
) -> AgentLaunch:
    """The agent that a ``deploy_agent`` step wants. ``env`` has its templates resolved."""
    policy = step.network_policy
    return AgentLaunch(
        agent_id=agent_id,
        name=step.agent_name,
        version=step.a2a_agent_version,
        env=env,
        sandbox_type=step.sandbox_type or settings.agent_sandbox,
        ttl_seconds=step.ttl_seconds,
        limits=limits_of(step),
        network_policy=None if policy is None else policy.model_dump(),
    )


def limits_of(step: DeployEnv | DeployAgent) -> Limits:
    """The resources that a step asks for.

    The format's default of 10 GB of disk is no wish: few Docker daemons could grant it.
    """
    wants_disk = "disk_size_gb" in step.raw
    return Limits(
        cpus=None if step.cpu is None else float(step.cpu),
        memory_mib=step.memory_mb,
        storage_mib=int(step.disk_size_gb * 1024) if wants_disk else None,
    )


def provider_of(entry: ServerEntry, choice: str) -> str:
    """The sandbox provider of an env or agent (design 5.2)."""
    has_image = entry.dockerfile is not None or entry.image is not None
    return provider_name(choice, has_image)


def spec_of(entry: ServerEntry, provider: str, limits: Limits) -> EnvironmentSpec:
    """What the sandbox of an env or agent is made of.

    Raises:
        StepError: nothing says how to start it with this provider.
    """
    if _runs_command(entry, provider):
        return EnvironmentSpec(files=entry.folder, workdir=WORKDIR, limits=limits)
    return EnvironmentSpec(
        image=entry.image,
        build_context=entry.folder if entry.image is None else None,
        limits=limits,
    )


def command_of(entry: ServerEntry, provider: str) -> tuple[str, ...]:
    """Argv of the server; empty where the image says it."""
    return entry.command if _runs_command(entry, provider) else ()


def python_of(entry: ServerEntry, provider: str) -> PythonNeed | None:
    """The Python that the server's command finds."""
    if not _runs_command(entry, provider):
        return None
    return PythonNeed(entry.requirements)


def _runs_command(entry: ServerEntry, provider: str) -> bool:
    """Whether the sandbox has no image, so that ``command`` starts the server."""
    has_image = entry.dockerfile is not None or entry.image is not None
    if provider != LOCAL and has_image:
        return False
    kind = "env" if isinstance(entry, EnvEntry) else "agent"
    if provider == DOCKER:
        raise StepError(
            f"{kind} '{entry.name}' has no image, which sandbox 'docker' needs; add a "
            "Dockerfile to its folder, or use the local sandbox"
        )
    if entry.command:
        return True
    raise StepError(
        f"{kind} '{entry.name}' needs an image, which sandbox '{provider}' does not "
        f"build; add `command` to its {kind}.toml, or use another sandbox"
    )


async def answers_its_card(url: str) -> str | None:
    """Probe of an agent: ready when its card can be read. Raises ProtocolError."""
    from pytest_harbor.protocols import a2a

    try:
        connection = await a2a.connect(url, timeout_seconds=0)
    except (ServerUnreachable, ServerRefused, ServerTimeout) as error:
        return str(error)
    await connection.aclose()
    return None
