"""The local provider: sandboxes on this machine, without images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import anyio
import anyio.to_thread

from pytest_harbor.errors import (
    SandboxLost,
    SandboxStartFailed,
    SandboxUnavailable,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import Capabilities, Provider, Sandbox, Swept, Tell
from pytest_harbor.sandboxes.environment import EnvironmentSpec, User
from pytest_harbor.sandboxes.install import run_install
from pytest_harbor.sandboxes.install_script import InstallScript
from pytest_harbor.sandboxes.local import (
    guards,
    inplace,
    installs,
    probing,
    shelf,
    starting,
    userland,
)
from pytest_harbor.sandboxes.local.base import Base
from pytest_harbor.sandboxes.local.ground import PLACES, Ground
from pytest_harbor.sandboxes.local.images.build import Workshop
from pytest_harbor.sandboxes.local.images.images import Image, LocalImages
from pytest_harbor.sandboxes.local.refusals import (
    has_image,
    image_key,
    refuse_compose,
    refuse_unknown_user,
    refuse_user,
    refuse_wandering,
)
from pytest_harbor.sandboxes.local.sandbox import LocalSandbox
from pytest_harbor.sandboxes.local.stack import Stack, overlays, part_name
from pytest_harbor.sandboxes.transfer_types import Upload
from pytest_harbor.settings import LocalMode

_NOT_ENVIRONMENT = frozenset({"Dockerfile", "docker-compose.yaml"})


class LocalProvider(Provider):
    """Namespaces by bubblewrap, or in-place where a container forbids them."""

    name: ClassVar[str] = "local"

    def __init__(
        self, *, mode: LocalMode = "auto", images: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._mode = mode
        self._images = LocalImages(images)
        self._probing = anyio.Lock()
        self._base: Base | None = None
        self._found: Capabilities | None = None
        self._sandboxes: list[LocalSandbox] = []
        self._installs = installs.LocalInstalls()

    async def probe(self) -> Capabilities:
        async with self._probing:
            if self._found is None:
                self._found = await self._probe()
            return self._found

    async def _probe(self) -> Capabilities:
        if self._mode == "in-place":
            return await self._settle()
        found = await self._probe_namespaces()
        is_stranded = not found.available and self._mode == "auto"
        if is_stranded and os.geteuid() == 0 and inplace.is_container():
            return await self._settle()
        return found

    async def _settle(self) -> Capabilities:
        found = inplace.capabilities()
        if found.available:
            await anyio.to_thread.run_sync(self._prepare, None)
        return found

    async def _probe_namespaces(self) -> Capabilities:
        try:
            bwrap = await anyio.to_thread.run_sync(probing.find_bwrap)
            await anyio.to_thread.run_sync(self._prepare, bwrap)
        except SandboxUnavailable as error:
            return Capabilities(False, reason=str(error))
        try:
            spec = EnvironmentSpec(network="no-network", workdir="/")
            sandbox = await self._start_namespaces(spec, "probe")
            try:
                result = await sandbox.exec(["/bin/sh", "-c", "echo works"])
            finally:
                await sandbox.stop()
        except (SandboxLost, SandboxStartFailed) as error:
            return probing.unavailable(str(error))
        if result.stdout != "works\n":
            return probing.unavailable(result.output)
        return probing.namespace_capabilities(bwrap)

    def _prepare(self, bwrap: probing.Bwrap | None) -> None:
        previous, self._base = self._base, Base.make(bwrap)
        if previous is not None:
            previous.close()

    def check(self, spec: EnvironmentSpec, users: Sequence[User | None]) -> None:
        refuse_compose(spec)
        if is_image := has_image(spec):
            if self._is_in_place:
                raise UnsupportedByProvider(
                    f"{image_key(spec)}: the local sandbox runs in-place in this "
                    "container and builds no images there; "
                    "use --harbor-sandbox docker"
                )
            self._images.check(spec)
        if spec.network == "allowlist":
            raise UnsupportedByProvider(
                "network_mode = 'allowlist': the local sandbox cannot filter hosts; "
                "use public or no-network"
            )
        refuse_wandering(spec.workdir)
        if self._is_in_place and spec.network == "no-network":
            raise UnsupportedByProvider(
                "network_mode = 'no-network': the local sandbox runs in-place in this "
                "container and has no network of its own to cut off"
            )
        for user in (spec.user, *users):
            refuse_user(user, one_uid=os.geteuid() != 0)
            if not is_image:  # which has users of its own
                refuse_unknown_user(user)

    async def prepare(
        self,
        spec: EnvironmentSpec,
        *,
        name: str,  # noqa: ARG002  # an image is no one's
        labels: Mapping[str, str],  # noqa: ARG002  # nothing outlives the process
        tell: Tell | None = None,
    ) -> None:
        await self._be_ready(spec)
        await self._image(spec, tell)

    async def start(
        self,
        spec: EnvironmentSpec,
        *,
        name: str,
        labels: Mapping[str, str],  # noqa: ARG002  # nothing outlives the process
        tell: Tell | None = None,
    ) -> Sandbox:
        await self._be_ready(spec)
        if spec.workdir is not None:
            spec = replace(spec, workdir=_normal(spec.workdir))
        ground = await self._take_ground(spec) if self._is_in_place else None
        try:
            return await self._start_within(spec, name, ground, tell)
        except BaseException:
            if ground is not None:
                await ground.release()
            raise

    async def _be_ready(self, spec: EnvironmentSpec) -> None:
        """Make sure that a sandbox can be asked for. Raises as :meth:`start`."""
        found = await self.probe()
        if not found.available:
            raise SandboxUnavailable(found.reason)
        if self._base is None:
            raise SandboxUnavailable("this local provider was closed")
        await self._revive()
        self.check(spec, ())

    async def _revive(self) -> None:
        """Begin anew after the broker was killed, which an agent can do in-place.

        Its sandboxes are lost with it, but not every episode that follows.
        """
        async with self._probing:
            base = self._base
            if base is not None and base.broker.has_ended:
                await anyio.to_thread.run_sync(self._prepare, base.bwrap)

    async def _start_within(
        self,
        spec: EnvironmentSpec,
        name: str,
        ground: Ground | None,
        tell: Tell | None,
    ) -> Sandbox:
        sandbox: LocalSandbox | None = None
        # A build and an installation have a time of their own each.
        image = await self._image(spec, tell)
        binds = await self._installed(spec, tell)
        try:
            with anyio.fail_after(spec.start_timeout_seconds):
                if ground is None:
                    sandbox = await self._start_namespaces(spec, name, binds, image)
                else:
                    sandbox = await self._start_in_place(spec, name)
                    for bind in binds:
                        await anyio.to_thread.run_sync(
                            installs.copy_in, bind.source, bind.target
                        )
                if spec.files is not None:
                    files = Upload(
                        spec.files, sandbox.workdir, exclude=_NOT_ENVIRONMENT
                    )
                    await sandbox.upload([files])
        except BaseException as error:
            if sandbox is not None:
                await sandbox.stop()
            if isinstance(error, TimeoutError):
                seconds = spec.start_timeout_seconds
                raise SandboxStartFailed(
                    f"sandbox {name} was not up after {seconds:g} s"
                ) from error
            raise
        if isinstance(sandbox, inplace.InPlaceSandbox):
            sandbox.ground = ground
        return sandbox

    async def _image(self, spec: EnvironmentSpec, tell: Tell | None) -> Image | None:
        """The image that a spec asks for, built if it is not there.

        Raises:
            BuildFailed: an instruction of its Dockerfile failed.
            UnsupportedByProvider: as :meth:`check`.
        """
        if not has_image(spec):
            return None
        base = self._base
        assert base is not None
        assert base.land is not None
        inside = EnvironmentSpec(
            build_context=spec.build_context, files=spec.files, workdir="/"
        )

        async def start_on(stack: Stack, name: str) -> LocalSandbox:
            return await self._start_namespaces(inside, name, stack=stack)

        skeleton = guards.skeleton(base.folder)
        arguments = userland.command_line(base.land, inside, ())
        workshop = Workshop(
            skeleton,
            base.land.path,
            tuple(part_name(place) for place in overlays(arguments(Stack(skeleton)))),
            start_on,
        )
        return await self._images.ready(spec, workshop, tell)

    async def _installed(
        self, spec: EnvironmentSpec, tell: Tell | None
    ) -> Sequence[userland.Bind]:
        """The software that a sandbox shall have, installed if it is not there.

        Raises:
            InstallFailed: the script failed.
        """
        if spec.install is None:
            return ()
        make = partial(self._install, spec.install)
        folder = await self._installs.ready(
            spec.install, make, tell, force=spec.force_build
        )
        return [userland.Bind(folder, spec.install.prefix)]

    async def _install(self, install: InstallScript, folder: Path) -> None:
        """Fill ``folder``, in a sandbox with network and nothing of the task."""
        name = f"install-{install.name}"
        if self._is_in_place:  # on the ground of the sandbox that wants it
            sandbox: LocalSandbox = await self._start_in_place(EnvironmentSpec(), name)
        else:
            binds = [userland.Bind(folder, install.prefix, is_writable=True)]
            sandbox = await self._start_namespaces(EnvironmentSpec(), name, binds)
        try:
            await run_install(sandbox, install)
        finally:
            await sandbox.stop()
        if self._is_in_place:
            source = Path(install.prefix)
            await anyio.to_thread.run_sync(installs.copy_in, source, str(folder))

    @property
    def _is_in_place(self) -> bool:
        return self._base is not None and self._base.land is None

    async def _take_ground(self, spec: EnvironmentSpec) -> Ground:
        ground = Ground()
        places = list(PLACES)
        if spec.workdir is not None and not _is_below(spec.workdir, places):
            places.append(spec.workdir)
        if spec.install is not None:
            places.append(spec.install.prefix)
        await ground.take(places)
        return ground

    async def _start_in_place(
        self, spec: EnvironmentSpec, name: str
    ) -> inplace.InPlaceSandbox:
        assert self._base is not None
        sandbox = await starting.in_place(self._base, spec, name)
        self._remember(sandbox)
        return sandbox

    async def _start_namespaces(
        self,
        spec: EnvironmentSpec,
        name: str,
        binds: Sequence[userland.Bind] = (),
        image: Image | None = None,
        stack: Stack | None = None,
    ) -> LocalSandbox:
        """Start one; ``stack`` is given for the build of an image."""
        assert self._base is not None
        sandbox = await starting.in_namespaces(
            self._base, spec, name, binds=binds, image=image, stack=stack
        )
        self._remember(sandbox)
        if image is not None:
            await starting.make_places(sandbox)
        return sandbox

    def _remember(self, sandbox: LocalSandbox) -> None:
        running = [known for known in self._sandboxes if not known.is_stopped]
        self._sandboxes = [*running, sandbox]

    async def sweep(self) -> Swept:
        removed = []
        for what, sweep in (
            ("process of a killed broker", shelf.sweep_processes),
            ("temporary folder", shelf.sweep_folders),
            ("half-made installation", self._installs.sweep),
            ("half-built image", self._images.sweep),
            ("place that was used in-place", Ground().sweep),
        ):
            removed += [what] * await anyio.to_thread.run_sync(sweep)
        return Swept(tuple(removed))

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            for sandbox in self._sandboxes:
                await sandbox.stop()
            self._sandboxes = []
            base, self._base = self._base, None
            if base is not None:
                await base.aclose()


def _normal(path: str) -> str:
    """An absolute path without what says nothing: ``//app/./`` is ``/app``."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _is_below(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)
