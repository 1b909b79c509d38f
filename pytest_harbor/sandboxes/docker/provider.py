"""Sandboxes in Docker containers.

A one-step episode costs eleven API requests once its image is known: create, start, two for
the agent's shell, put the solution (and the log folders), look at the artifacts, two for the
verifier's shell, put the tests (emptying what was there), get its logs, remove. Another one
gets the artifacts if there are any. The daemon starts a shell and copies files at once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import anyio

from pytest_harbor.errors import (
    SandboxUnavailable,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import Capabilities, Provider, Swept, Tell
from pytest_harbor.sandboxes.environment import EnvironmentSpec, User
from pytest_harbor.settings import DEFAULT_EGRESS_IMAGE

if TYPE_CHECKING:  # docker loads on first use, not when the provider is looked up
    from pytest_harbor.sandboxes.docker.container import DockerSandbox
    from pytest_harbor.sandboxes.docker.launcher import Launcher


class DockerProvider(Provider):
    """Containers of one Docker daemon, found as the ``docker`` command finds it.

    ``max_starts`` bounds the containers that start at the same time on this machine, in
    whatever process (default: its cores): the daemon gets slower beyond that.
    ``no_new_privileges`` keeps setuid programs from giving a command more rights than its
    user has; ``sudo`` by a user other than root does not work with it. ``egress_image`` has a
    ``python3``, for the proxy of sandboxes with an allowlist.
    """

    name = "docker"

    def __init__(
        self,
        *,
        max_starts: int | None = None,
        no_new_privileges: bool = True,
        egress_image: str = DEFAULT_EGRESS_IMAGE,
    ) -> None:
        self._max_starts = max_starts or os.cpu_count() or 1
        self._no_new_privileges = no_new_privileges
        self._egress_image = egress_image
        self._session = secrets.token_hex(8)
        self._launcher: Launcher | None = None
        self._reason = ""
        self._connecting: anyio.Lock | None = None
        self._closed = False

    async def probe(self) -> Capabilities:
        try:
            engine = (await self._connected()).engine
        except SandboxUnavailable as error:
            return Capabilities(available=False, reason=str(error))
        return Capabilities(
            available=True,
            mode=f"{'Podman' if engine.is_podman else 'Docker'} {engine.version}",
            isolation="container",
            groups=True,
            switches_network=not engine.is_podman,
        )

    def check(
        self,
        spec: EnvironmentSpec,
        users: Sequence[User | None],  # noqa: ARG002 - a container has every user
    ) -> None:
        if spec.compose_file is not None and (
            spec.network == "allowlist" or spec.phase_networks
        ):
            raise UnsupportedByProvider(
                "network_mode: docker enforces 'allowlist', and a network of [agent] or "
                "[verifier] alone, for one container, and not for the services of "
                "environment/docker-compose.yaml; use 'no-network' or 'public' in "
                "[environment]"
            )
        if self._launcher is not None:
            self._launcher.check(spec)
        if spec.read_only_folders:
            raise UnsupportedByProvider(
                "docker: a container sees no folder of this host; put into its image "
                f"what {spec.read_only_folders[0]} has"
            )
        if spec.compose_file is not None:
            from pytest_harbor.sandboxes.docker import compose

            compose.check(spec)
        elif spec.image is None and spec.build_context is None:
            raise UnsupportedByProvider(
                "no environment: set [environment].docker_image or add "
                "environment/Dockerfile; docker needs one of them, --harbor-sandbox "
                "local neither"
            )

    async def start(
        self,
        spec: EnvironmentSpec,
        *,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None = None,
    ) -> DockerSandbox:
        self.check(spec, ())
        launcher = await self._connected()
        launcher.check(spec)
        return await launcher.start(spec, name, labels, tell)

    async def prepare(
        self,
        spec: EnvironmentSpec,
        *,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None = None,
    ) -> None:
        if spec.compose_file is None:  # Compose gets the images of services by itself
            launcher = await self._connected()
            await launcher.prepare(spec, name, labels, tell)

    async def sweep(self) -> Swept:
        engine = (await self._connected()).engine
        from pytest_harbor.sandboxes.docker import sweep
        from pytest_harbor.sandboxes.docker.client import DaemonError

        try:
            return await engine.call(sweep.sweep)
        except DaemonError as error:
            raise SandboxUnavailable(
                f"cannot look for left-over containers: {error.text}"
            ) from error

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            self._closed = True
            if self._launcher is not None:
                await self._launcher.aclose()

    async def _connected(self) -> Launcher:
        if self._closed:
            raise SandboxUnavailable("this docker provider has been closed")
        if self._connecting is None:
            self._connecting = anyio.Lock()
        async with self._connecting:
            if self._reason:
                raise SandboxUnavailable(self._reason)
            if self._launcher is None:
                self._launcher = await self._connect()
        return self._launcher

    async def _connect(self) -> Launcher:
        from pytest_harbor.sandboxes.docker.client import Engine
        from pytest_harbor.sandboxes.docker.launcher import Launcher

        try:
            engine = await Engine.connect()
        except SandboxUnavailable as error:
            self._reason = str(error)
            raise
        return Launcher(
            engine,
            session=self._session,
            max_starts=self._max_starts,
            no_new_privileges=self._no_new_privileges,
            egress_image=self._egress_image,
        )
