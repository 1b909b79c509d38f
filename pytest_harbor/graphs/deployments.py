"""Everything that a run has deployed: registered, found again, torn down (spec 2.3)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import anyio

from pytest_harbor.errors import AlreadyDeployed, SandboxUnavailable
from pytest_harbor.graphs.context import RunContext
from pytest_harbor.graphs.instances import Instance
from pytest_harbor.graphs.servers import (
    SandboxServer,
    ServerPlan,
    Surroundings,
    start_server,
)
from pytest_harbor.graphs.steps.api import ReservedKind
from pytest_harbor.sandboxes.api import Provider

TEARDOWN_SECONDS: Final = 120.0
"""How long each instance may take to stop (spec 2.3)."""


class Deployments:
    """The instances of one run, each with the step that made it."""

    limit_seconds = TEARDOWN_SECONDS

    def __init__(
        self,
        providers: Mapping[str, Provider],
        context: RunContext,
        surroundings: Surroundings,
    ) -> None:
        self._providers = providers
        self._context = context
        self.surroundings = surroundings
        self._instances: dict[str, tuple[Instance, str]] = {}
        self._used: set[str] = set()
        self._reserved: set[tuple[ReservedKind, str]] = set()

    def register(self, instance: Instance, step_id: str) -> None:
        """Take over an instance: it is stopped with the run, or with its step's retry."""
        self._instances[instance.instance_id] = (instance, step_id)
        if instance.sandbox is not None:
            self._used.add(instance.sandbox.provider)

    def find(self, instance_id: str) -> Instance | None:
        """The instance of that ID, stopped ones included."""
        found = self._instances.get(instance_id)
        return None if found is None else found[0]

    def all(self) -> list[Instance]:
        """Every instance of the run, in the order of their starts."""
        return [instance for instance, _ in self._instances.values()]

    def provider(self, name: str) -> Provider:
        """The provider of that name. Raises SandboxUnavailable."""
        if name not in self._providers:
            raise SandboxUnavailable(
                f"this run has no sandbox provider {name!r}, only "
                f"{', '.join(sorted(self._providers)) or 'none'}"
            )
        return self._providers[name]

    def used_providers(self) -> tuple[str, ...]:
        """Names of the providers that gave a sandbox, sorted."""
        return tuple(sorted(self._used))

    @contextmanager
    def reserve(self, kind: ReservedKind, name: str) -> Iterator[None]:
        """Hold a name of the run while something is deployed under it (spec 4, 6).

        Raises:
            AlreadyDeployed: the run has it, or is about to.
        """
        if (kind, name) in self._reserved or self._is_deployed(kind, name):
            raise AlreadyDeployed(_TAKEN[kind].format(name=name))
        self._reserved.add((kind, name))
        try:
            yield
        finally:
            self._reserved.discard((kind, name))

    def _is_deployed(self, kind: ReservedKind, name: str) -> bool:
        match kind:
            case "env":
                names = [env.env_id for env in self._context.deployed_envs]
            case "agent":
                names = [agent.agent_name for agent in self._context.deployed_agents]
            case "sandbox":
                names = [box.sandbox_name for box in self._context.deployed_sandboxes]
        return name in names

    async def stop_of_steps(self, step_ids: Collection[str]) -> list[str]:
        """Stop what these steps made, and forget it; returns what went wrong."""
        chosen = [
            instance
            for instance, step_id in self._instances.values()
            if step_id in step_ids
        ]
        problems = await self.stop(chosen)
        for instance in chosen:
            self._instances.pop(instance.instance_id, None)
        return problems

    async def stop_all(self) -> list[str]:
        """Stop everything; returns what went wrong. Never cancelled half-way."""
        return await self.stop(self.all())

    async def stop(self, instances: Collection[Instance]) -> list[str]:
        """Stop instances, all at once, each with its own limit; shielded.

        Best effort: what goes wrong is returned, never raised.
        """
        problems: list[str] = []

        async def stop_one(instance: Instance) -> None:
            with anyio.move_on_after(self.limit_seconds) as scope:
                try:
                    await instance.stop()
                except Exception as error:  # noqa: BLE001 - the others must end, too
                    problems.append(f"{_removal(instance)}: {error}")
            if scope.cancelled_caught:
                problems.append(
                    f"{_removal(instance)}: it took more than {self.limit_seconds:g} s"
                )

        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for instance in instances:
                    group.start_soon(stop_one, instance)
        return problems


@dataclass(frozen=True)
class Starter:
    """What one step starts instances with; they belong to it."""

    deployments: Deployments
    step_id: str

    @property
    def surroundings(self) -> Surroundings:
        """Labels, logs, masker and the task group of whatever is started."""
        return self.deployments.surroundings

    def provider(self, name: str) -> Provider:
        """The sandbox provider of that name. Raises SandboxUnavailable."""
        return self.deployments.provider(name)

    def register(self, instance: Instance) -> None:
        """Take over an instance, before it can leak."""
        self.deployments.register(instance, self.step_id)

    async def start_server(self, plan: ServerPlan) -> SandboxServer:
        """Start a server in a sandbox. Raises as ``servers.start_server``."""
        provider = self.provider(plan.provider)
        return await start_server(plan, provider, self.surroundings, self.register)


_TAKEN: Final[Mapping[ReservedKind, str]] = {
    "env": "Env '{name}' is already deployed",
    "agent": "Agent with name '{name}' is already deployed",
    "sandbox": "Sandbox with name '{name}' is already deployed",
}
"""The format's own words [S]."""


def _removal(instance: Instance) -> str:
    sandbox = "" if instance.sandbox is None else f" (sandbox {instance.sandbox.id})"
    return f"{instance.what}{sandbox} was not removed"
