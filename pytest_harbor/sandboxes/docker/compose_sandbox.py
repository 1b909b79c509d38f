"""The containers of one Compose project as sandboxes: ``main``, and its services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.docker.container import DockerSandbox


class ServiceSandbox(DockerSandbox):
    """A sidecar. It belongs to its project, which is what is removed."""

    async def stop(self) -> None:
        """Kill it; it is removed with its project."""
        await self._end("it has been stopped")

    async def _end(self, why: str) -> None:
        if not self._life.is_over:
            self._expected.let_go()
            await self._life.kill(why)


class ComposeSandbox(ServiceSandbox):
    """``main``: the agent's sandbox, and the owner of its project."""

    def __init__(
        self,
        *arguments: Any,
        project: str,
        services: Mapping[str, ServiceSandbox],
        remove_project: Callable[[str], None],
        command: str,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._project = project
        self._services = services
        self._remove_project = remove_project
        self._command = command

    @property
    def container(self) -> str:
        """The daemon's ID of it."""
        return self._container

    @property
    def services(self) -> Mapping[str, Sandbox]:
        return self._services

    async def stop(self) -> None:
        if self._life.is_stopped:
            return
        self._life.is_stopped = True
        self._expected.let_go()
        self._forget(self._container)
        self._remove_project(self._project)

    async def halt(self) -> None:
        await self._end("it has no further use")

    def how_to_enter(self) -> str:
        return (
            f"docker exec -it {self.id} sh    (remove it and its services: "
            f"{self._command} -p {self._project} down -t 0 -v)"
        )
