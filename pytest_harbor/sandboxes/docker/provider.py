"""Sandboxes in Docker containers.

A one-step episode costs eleven API requests once its image is known: create, start, two for
the agent's shell, put the solution (and the log folders), look at the artifacts, two for the
verifier's shell, put the tests (emptying what was there), get its logs, remove. Another one
gets the artifacts if there are any. The daemon starts a shell and copies files at once.
"""

from __future__ import annotations

import os
import posixpath
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from pytest_harbor.errors import (
    SandboxStartFailed,
    SandboxUnavailable,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import TASK_LABEL, Capabilities, Provider, Swept, Tell
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Network, User
from pytest_harbor.settings import DEFAULT_EGRESS_IMAGE
from pytest_harbor.tasks.folder.model import MAIN_SERVICE

if TYPE_CHECKING:  # docker loads on first use, not when the provider is looked up
    import docker

    from pytest_harbor.sandboxes.docker.client import Engine
    from pytest_harbor.sandboxes.docker.compose import Projects
    from pytest_harbor.sandboxes.docker.container import DockerSandbox
    from pytest_harbor.sandboxes.docker.egress import Egress
    from pytest_harbor.sandboxes.docker.images import Image, Images
    from pytest_harbor.sandboxes.docker.install import DockerInstalls
    from pytest_harbor.sandboxes.docker.networks import Networks
    from pytest_harbor.sandboxes.docker.removals import Removals


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
        self._engine: Engine | None = None
        self._images: Images | None = None
        self._installs: DockerInstalls | None = None
        self._projects: Projects | None = None
        self._reason = ""
        self._connecting: anyio.Lock | None = None
        self._project_starts: anyio.Semaphore | None = None
        self._removals: Removals | None = None
        self._sandboxes: dict[str, DockerSandbox] = {}
        self._absent_folders: dict[str, tuple[str, ...]] = {}  # of images looked at
        self._refused_limits: dict[str, str] = {}
        self._closed = False

    async def probe(self) -> Capabilities:
        try:
            engine = await self._connected()
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
        if self._engine is not None:
            _check_networks(self._engine, spec)
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
        engine = await self._connected()
        _check_networks(engine, spec)
        from pytest_harbor.sandboxes.docker.client import DaemonError
        from pytest_harbor.sandboxes.docker.create import start_error

        start = self._start if spec.compose_file is None else self._start_project
        try:
            return await start(engine, spec, name, labels, tell)
        except DaemonError as error:
            if error.status is not None or not await engine.comes_back():
                raise start_error(error, spec) from error
        self._removed.again()
        try:
            return await start(engine, spec, name, labels, tell)
        except DaemonError as error:
            raise start_error(error, spec) from error

    async def _start(
        self,
        engine: Engine,
        spec: EnvironmentSpec,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None,
    ) -> DockerSandbox:
        from pytest_harbor.sandboxes.docker.container import DockerSandbox
        from pytest_harbor.sandboxes.docker.create import NewContainer
        from pytest_harbor.sandboxes.docker.files import OPEN_FOLDERS
        from pytest_harbor.sandboxes.docker.sweep import all_labels
        from pytest_harbor.sandboxes.machine import place

        assert self._images is not None
        task = labels.get(TASK_LABEL, name)
        image = await self._images.ready(spec, task, tell)
        if spec.install is not None:
            image = await self._installed(engine, image, spec, labels, tell)
        unique = f"{_slug(name)}-{secrets.token_hex(4)}"
        every_label = all_labels(labels, self._session)
        networks = await self._networks(engine, spec, unique, every_label, tell)
        new = NewContainer(
            spec=spec,
            image=image,
            name=unique,
            workdir=posixpath.normpath(
                posixpath.join("/", image.workdir, spec.workdir or "")
            ),
            labels=every_label,
            no_new_privileges=self._no_new_privileges,
            networks=networks,
        )
        try:
            container, unenforced = await engine.call(
                lambda client: new.create(client, self._refused_limits)
            )
        except BaseException:
            self._remove_networks_later(networks)
            raise
        sandbox = DockerSandbox(
            engine,
            container,
            name=new.name,
            image=image,
            workdir=new.workdir,
            user=spec.user,
            remove=partial(self._remove_later, networks),
            forget=self._sandboxes.pop,
            unmade=OPEN_FOLDERS,
            absent=()
            if spec.files is not None
            else self._absent_folders.get(image.name, ()),
            unenforced=unenforced,
            networks=networks,
        )
        self._sandboxes[container] = sandbox
        try:
            if image.name not in self._absent_folders:
                self._absent_folders[image.name] = await engine.call(
                    lambda client: new.look_at_image(client, container)
                )
            if spec.files is not None:
                await engine.call(lambda client: new.fill(client, container))
            async with place("starts", self._max_starts):
                await engine.call(lambda client: client.start(container))
        except BaseException:
            await sandbox.stop()
            raise
        return sandbox

    async def _networks(
        self,
        engine: Engine,
        spec: EnvironmentSpec,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None,
    ) -> Networks:
        """The networks that a container will be in, and the proxies that they need."""
        from pytest_harbor.sandboxes.docker import networks
        from pytest_harbor.sandboxes.docker.egress import NewEgress
        from pytest_harbor.sandboxes.docker.sweep import COMPANION_LABEL
        from pytest_harbor.sandboxes.machine import place

        wanted = list(filter(networks.needs_proxy, networks.networks_of(spec)))
        if not wanted:
            return networks.Networks.of(spec)
        image = await self._proxy_image(tell)
        made: dict[Network, Egress] = {}
        try:
            for number, network in enumerate(wanted):
                new = NewEgress(
                    image=image,
                    name=f"{name}-egress{number or ''}",
                    allowed_hosts=network.allowed_hosts,
                    labels={**labels, COMPANION_LABEL: name},
                )
                async with place("starts", self._max_starts):
                    made[network] = await engine.call(new.make)
        except BaseException:
            self._remove_networks_later(networks.Networks(wanted[0], wanted, made))
            raise
        return networks.Networks.of(spec, made)

    async def _proxy_image(self, tell: Tell | None) -> str:
        """The image of proxies. Raises SandboxStartFailed."""
        assert self._images is not None
        spec = EnvironmentSpec(image=self._egress_image)
        try:
            return (await self._images.ready(spec, "egress", tell)).name
        except SandboxStartFailed as error:
            raise SandboxStartFailed(
                "network_mode = 'allowlist' needs an image with python3 for its proxy "
                f"(ini harbor_egress_image = {self._egress_image}): {error}",
                is_final=error.is_final,
            ) from error

    async def _installed(
        self,
        engine: Engine,
        image: Image,
        spec: EnvironmentSpec,
        labels: Mapping[str, str],
        tell: Tell | None,
    ) -> Image:
        """The image with the agent's layer; made with network and nothing of the task's."""
        assert self._installs is not None
        install = spec.install
        assert install is not None
        bare = EnvironmentSpec(image=image.name)
        name = f"install-{install.name}"
        start = partial(self._start, engine, bare, name, labels, tell)
        return await self._installs.on(
            image, install, start, tell, force=spec.force_build
        )

    async def _start_project(
        self,
        engine: Engine,
        spec: EnvironmentSpec,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None,
    ) -> DockerSandbox:
        from pytest_harbor.sandboxes.docker import compose
        from pytest_harbor.sandboxes.docker.sweep import all_labels

        assert self._images is not None
        assert self._project_starts is not None
        if self._projects is None:
            self._projects = compose.Projects(
                engine,
                self._images,
                no_new_privileges=self._no_new_privileges,
                refused_limits=self._refused_limits,
                remove=self._remove_project_later,
            )
        new = compose.NewProject(
            spec=spec,
            name=compose.project_name(name),
            task=labels.get(TASK_LABEL, name),
            labels=all_labels(labels, self._session),
            tell=tell,
        )
        model, plan = await self._projects.prepare(new)
        if spec.install is not None:
            main = plan.images[MAIN_SERVICE]
            main = await self._installed(engine, main, spec, labels, tell)
            plan = replace(plan, images={**plan.images, MAIN_SERVICE: main})
        # Of this process alone: a project may wait for minutes until it is healthy.
        async with self._project_starts:
            sandbox = await self._projects.start(
                new, model, plan, forget=self._sandboxes.pop
            )
        self._sandboxes[sandbox.container] = sandbox
        return sandbox

    async def sweep(self) -> Swept:
        engine = await self._connected()
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
            for sandbox in list(self._sandboxes.values()):
                await sandbox.stop()
            if self._engine is None:
                return
            try:
                await self._removed.finish(self._engine)
            finally:
                self._engine.close()

    async def _connected(self) -> Engine:
        if self._closed:
            raise SandboxUnavailable("this docker provider has been closed")
        if self._connecting is None:
            self._connecting = anyio.Lock()
        async with self._connecting:
            if self._reason:
                raise SandboxUnavailable(self._reason)
            if self._engine is None:
                self._engine = await self._connect()
        return self._engine

    async def _connect(self) -> Engine:
        from pytest_harbor.sandboxes.docker.client import Engine
        from pytest_harbor.sandboxes.docker.images import Images
        from pytest_harbor.sandboxes.docker.install import DockerInstalls

        try:
            engine = await Engine.connect()
        except SandboxUnavailable as error:
            self._reason = str(error)
            raise
        # The run of pytest-xdist that this process is a worker of, if it is one.
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", self._session)
        self._images = Images(engine, run)
        self._installs = DockerInstalls(engine)
        self._project_starts = anyio.Semaphore(self._max_starts)
        return engine

    def _remove_later(self, networks: Networks, container: str, name: str) -> None:
        from pytest_harbor.sandboxes.docker.removals import Removal
        from pytest_harbor.sandboxes.docker.sweep import remove_container

        self._sandboxes.pop(container, None)
        assert self._engine is not None

        def remove(client: docker.APIClient) -> None:
            remove_container(client, container)
            networks.remove(client)

        work = partial(self._engine.run, remove)
        self._removed.later(Removal(work, f"docker rm -f -v {name}{networks.removal}"))

    def _remove_networks_later(self, networks: Networks) -> None:
        """Remove what was made for a container that never came to be."""
        from pytest_harbor.sandboxes.docker.removals import Removal

        if networks.egresses:
            assert self._engine is not None
            work = partial(self._engine.run, networks.remove)
            self._removed.later(Removal(work, networks.removal.removeprefix("; ")))

    def _remove_project_later(self, project: str, is_unfinished: bool) -> None:
        from pytest_harbor.sandboxes.docker import compose_project
        from pytest_harbor.sandboxes.docker.removals import Removal

        assert self._engine is not None
        work = partial(
            compose_project.remove, self._engine, project, settle=is_unfinished
        )
        self._removed.later(Removal(work, f"docker compose -p {project} down -v"))

    @property
    def _removed(self) -> Removals:
        if self._removals is None:
            from pytest_harbor.sandboxes.docker.removals import Removals

            self._removals = Removals()
        return self._removals


def _check_networks(engine: Engine, spec: EnvironmentSpec) -> None:
    """Refuse what Podman would leave open. Raises UnsupportedByProvider."""
    is_filtered = spec.network == "allowlist" and spec.allowed_hosts
    is_project = spec.compose_file is not None and spec.network == "no-network"
    if engine.is_podman and (is_filtered or is_project or spec.phase_networks):
        raise UnsupportedByProvider(
            "network_mode: Podman's internal networks reach this machine. Only Docker's "
            "own daemon enforces 'allowlist', a network of [agent] or [verifier] alone, "
            "and 'no-network' with a Compose file"
        )


def _slug(name: str) -> str:
    """``name`` as the first part of a container's name."""
    plain = re.sub(r"[^a-zA-Z0-9_.-]+", "-", name).strip("-._")
    return f"pytest-harbor-{plain}"[:80]
