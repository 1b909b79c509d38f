"""How the sandboxes of one Docker daemon come up, and how they are removed."""

from __future__ import annotations

import os
import posixpath
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
import docker

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.api import TASK_LABEL, Tell
from pytest_harbor.sandboxes.docker.client import DaemonError, Engine
from pytest_harbor.sandboxes.docker.container import DockerSandbox
from pytest_harbor.sandboxes.docker.create import NewContainer, start_error
from pytest_harbor.sandboxes.docker.egress import Egress, NewEgress
from pytest_harbor.sandboxes.docker.files import OPEN_FOLDERS
from pytest_harbor.sandboxes.docker.images import Image, Images
from pytest_harbor.sandboxes.docker.install import DockerInstalls
from pytest_harbor.sandboxes.docker.networks import (
    Networks,
    check_enforced,
    needs_proxy,
    networks_of,
)
from pytest_harbor.sandboxes.docker.removals import Removal, Removals
from pytest_harbor.sandboxes.docker.sweep import (
    COMPANION_LABEL,
    all_labels,
    remove_container,
)
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Network
from pytest_harbor.sandboxes.machine import place
from pytest_harbor.tasks.folder.model import MAIN_SERVICE

if TYPE_CHECKING:  # few tasks have services
    from pytest_harbor.sandboxes.docker.compose import Projects

_Made = TypeVar("_Made")


class Launcher:
    """Brings up containers and Compose projects, and removes them in the background.

    ``session`` labels all of it. The rest is as at ``DockerProvider``.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        session: str,
        max_starts: int,
        no_new_privileges: bool,
        egress_image: str,
    ) -> None:
        self.engine = engine
        self._session = session
        self._max_starts = max_starts
        self._no_new_privileges = no_new_privileges
        self._egress_image = egress_image
        # The run of pytest-xdist that this process is a worker of, if it is one.
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", session)
        self._images = Images(engine, run)
        self._installs = DockerInstalls(engine)
        self._projects: Projects | None = None
        self._project_starts = anyio.Semaphore(max_starts)
        self._removals = Removals()
        self._sandboxes: dict[str, DockerSandbox] = {}
        self._absent_folders: dict[str, tuple[str, ...]] = {}  # of images looked at
        self._refused_limits: dict[str, str] = {}

    def check(self, spec: EnvironmentSpec) -> None:
        """Refuse what this daemon would leave open. Raises UnsupportedByProvider."""
        check_enforced(self.engine, spec)

    async def prepare(
        self,
        spec: EnvironmentSpec,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None,
    ) -> None:
        """As ``DockerProvider.prepare``; a daemon that comes back is waited for."""
        await self._persist(partial(self._image, spec, name, labels, tell), spec)

    async def start(
        self,
        spec: EnvironmentSpec,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None,
    ) -> DockerSandbox:
        """As ``DockerProvider.start``; a daemon that comes back is waited for."""
        start = self._start if spec.compose_file is None else self._start_project
        return await self._persist(partial(start, spec, name, labels, tell), spec)

    async def _persist(
        self, work: Callable[[], Awaitable[_Made]], spec: EnvironmentSpec
    ) -> _Made:
        """Do it; once more when the daemon went away and came back."""
        try:
            return await work()
        except DaemonError as error:
            if error.status is not None or not await self.engine.comes_back():
                raise start_error(error, spec) from error
        self._removals.again()
        try:
            return await work()
        except DaemonError as error:
            raise start_error(error, spec) from error

    async def aclose(self) -> None:
        """Remove all that is still up, and wait until everything is gone.

        Raises:
            SandboxError: some things are left; with the commands that remove them.
        """
        for sandbox in list(self._sandboxes.values()):
            await sandbox.stop()
        try:
            await self._removals.finish(self.engine)
        finally:
            self.engine.close()

    async def _start(
        self,
        spec: EnvironmentSpec,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None,
    ) -> DockerSandbox:
        image = await self._image(spec, name, labels, tell)
        unique = f"{_slug(name)}-{secrets.token_hex(4)}"
        every_label = all_labels(labels, self._session)
        networks = await self._networks(spec, unique, every_label, tell)
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
            container, unenforced = await self.engine.call(
                lambda client: new.create(client, self._refused_limits)
            )
        except BaseException:
            self._remove_networks_later(networks)
            raise
        sandbox = DockerSandbox(
            self.engine,
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
                self._absent_folders[image.name] = await self.engine.call(
                    lambda client: new.look_at_image(client, container)
                )
            if spec.files is not None:
                await self.engine.call(lambda client: new.fill(client, container))
            async with place("starts", self._max_starts):
                await self.engine.call(lambda client: client.start(container))
        except BaseException:
            await sandbox.stop()
            raise
        return sandbox

    async def _image(
        self,
        spec: EnvironmentSpec,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None,
    ) -> Image:
        """The image of a container, with what is to be installed in it."""
        image = await self._images.ready(spec, labels.get(TASK_LABEL, name), tell)
        if spec.install is not None:
            image = await self._installed(image, spec, labels, tell)
        return image

    async def _networks(
        self,
        spec: EnvironmentSpec,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None,
    ) -> Networks:
        """The networks that a container will be in, and the proxies that they need."""
        wanted = list(filter(needs_proxy, networks_of(spec)))
        if not wanted:
            return Networks.of(spec)
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
                    made[network] = await self.engine.call(new.make)
        except BaseException:
            self._remove_networks_later(Networks(wanted[0], wanted, made))
            raise
        return Networks.of(spec, made)

    async def _proxy_image(self, tell: Tell | None) -> str:
        """The image of proxies. Raises SandboxStartFailed."""
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
        image: Image,
        spec: EnvironmentSpec,
        labels: Mapping[str, str],
        tell: Tell | None,
    ) -> Image:
        """The image with the agent's layer; made with network and nothing of the task's."""
        install = spec.install
        assert install is not None
        bare = EnvironmentSpec(image=image.name)
        name = f"install-{install.name}"
        start = partial(self._start, bare, name, labels, tell)
        return await self._installs.on(
            image, install, start, tell, force=spec.force_build
        )

    async def _start_project(
        self,
        spec: EnvironmentSpec,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None,
    ) -> DockerSandbox:
        from pytest_harbor.sandboxes.docker import compose

        if self._projects is None:
            self._projects = compose.Projects(
                self.engine,
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
            main = await self._installed(main, spec, labels, tell)
            plan = replace(plan, images={**plan.images, MAIN_SERVICE: main})
        # Of this process alone: a project may wait for minutes until it is healthy.
        async with self._project_starts:
            sandbox = await self._projects.start(
                new, model, plan, forget=self._sandboxes.pop
            )
        self._sandboxes[sandbox.container] = sandbox
        return sandbox

    def _remove_later(self, networks: Networks, container: str, name: str) -> None:
        self._sandboxes.pop(container, None)

        def remove(client: docker.APIClient) -> None:
            remove_container(client, container)
            networks.remove(client)

        work = partial(self.engine.run, remove)
        self._removals.later(Removal(work, f"docker rm -f -v {name}{networks.removal}"))

    def _remove_networks_later(self, networks: Networks) -> None:
        """Remove what was made for a container that never came to be."""
        if networks.egresses:
            work = partial(self.engine.run, networks.remove)
            self._removals.later(Removal(work, networks.removal.removeprefix("; ")))

    def _remove_project_later(self, project: str, is_unfinished: bool) -> None:
        from pytest_harbor.sandboxes.docker import compose_project

        work = partial(
            compose_project.remove, self.engine, project, settle=is_unfinished
        )
        self._removals.later(Removal(work, f"docker compose -p {project} down -v"))


def _slug(name: str) -> str:
    """``name`` as the first part of a container's name."""
    plain = re.sub(r"[^a-zA-Z0-9_.-]+", "-", name).strip("-._")
    return f"pytest-harbor-{plain}"[:80]
