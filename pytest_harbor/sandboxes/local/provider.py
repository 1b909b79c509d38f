"""The local provider: sandboxes on this machine, without images."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import anyio
import anyio.to_thread

from pytest_harbor.errors import (
    SandboxLost,
    SandboxStartFailed,
    SandboxUnavailable,
    TransferFailed,
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
    userland,
)
from pytest_harbor.sandboxes.local.broker import wire
from pytest_harbor.sandboxes.local.client import BrokerClient, receive
from pytest_harbor.sandboxes.local.etc import copy_etc
from pytest_harbor.sandboxes.local.ground import PLACES, Ground
from pytest_harbor.sandboxes.local.images.build import Workshop, empty_tar
from pytest_harbor.sandboxes.local.images.images import Image, LocalImages
from pytest_harbor.sandboxes.local.refusals import (
    has_image,
    image_key,
    refuse_compose,
    refuse_unknown_user,
    refuse_wandering,
)
from pytest_harbor.sandboxes.local.sandbox import (
    OPEN_FOLDERS,
    Facts,
    LocalSandbox,
    refuse_user,
)
from pytest_harbor.sandboxes.local.stack import Stack, overlays, part_name
from pytest_harbor.sandboxes.transfer_types import Upload
from pytest_harbor.settings import LocalMode

_NOT_ENVIRONMENT = frozenset({"Dockerfile", "docker-compose.yaml"})
_numbers = itertools.count(1)


@dataclass(frozen=True)
class _Ready:
    """What the provider found and made on first use."""

    folder: Path
    broker: BrokerClient
    bwrap: probing.Bwrap | None
    land: userland.Userland | None
    """``None`` in in-place mode."""


class LocalProvider(Provider):
    """Namespaces by bubblewrap, or in-place where a container forbids them."""

    name: ClassVar[str] = "local"

    def __init__(
        self, *, mode: LocalMode = "auto", images: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._mode = mode
        self._images = LocalImages(images)
        self._probing = anyio.Lock()
        self._ready: _Ready | None = None
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
        folder = shelf.new_folder()
        broker = BrokerClient(folder)
        broker.start()  # it comes up while the userland is made
        land = None if bwrap is None else _make_userland(bwrap, folder)
        previous = self._ready
        self._ready = _Ready(folder, broker, bwrap, land)
        if previous is not None:
            previous.broker.close()
            shelf.remove_folder(previous.folder)

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

    async def start(
        self,
        spec: EnvironmentSpec,
        *,
        name: str,
        labels: Mapping[str, str],  # noqa: ARG002  # nothing outlives the process
        tell: Tell | None = None,
    ) -> Sandbox:
        found = await self.probe()
        if not found.available:
            raise SandboxUnavailable(found.reason)
        if self._ready is None:
            raise SandboxUnavailable("this local provider was closed")
        await self._revive()
        self.check(spec, ())
        if spec.workdir is not None:
            spec = replace(spec, workdir=_normal(spec.workdir))
        ground = await self._take_ground(spec) if self._is_in_place else None
        try:
            return await self._start_within(spec, name, ground, tell)
        except BaseException:
            if ground is not None:
                await ground.release()
            raise

    async def _revive(self) -> None:
        """Begin anew after the broker was killed, which an agent can do in-place.

        Its sandboxes are lost with it, but not every episode that follows.
        """
        async with self._probing:
            ready = self._ready
            if ready is not None and ready.broker.has_ended:
                await anyio.to_thread.run_sync(self._prepare, ready.bwrap)

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
        ready = self._ready
        assert ready is not None
        assert ready.land is not None
        inside = EnvironmentSpec(
            build_context=spec.build_context, files=spec.files, workdir="/"
        )

        async def start(stack: Stack, name: str) -> LocalSandbox:
            return await self._start_namespaces(inside, name, stack=stack)

        skeleton = guards.skeleton(ready.folder)
        arguments = userland.command_line(ready.land, inside, ())
        workshop = Workshop(
            skeleton,
            ready.land.path,
            tuple(part_name(place) for place in overlays(arguments(Stack(skeleton)))),
            start,
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
        return self._ready is not None and self._ready.land is None

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
        ready = self._ready
        assert ready is not None
        workdir = spec.workdir or userland.DEFAULT_WORKDIR
        await anyio.Path(workdir).mkdir(parents=True, exist_ok=True)
        identity = _identity(name)
        request = {"op": "settle", "place": identity}
        channel = ready.broker.request(request)
        await _await_start(ready.broker, channel, name)
        facts = Facts(
            id=identity,
            workdir=workdir,
            env={"PATH": inplace.command_path(), **spec.env},
            tools=inplace.found_tools(),
            enter="the sandbox is this container itself",
            one_uid=False,
        )
        sandbox = inplace.InPlaceSandbox(ready.broker, channel, facts, spec.user)
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
        ready = self._ready
        assert ready is not None
        land = ready.land
        assert land is not None
        own_network = spec.network == "no-network"
        arguments = userland.command_line(land, spec, binds)
        if image is not None:
            skeleton = guards.skeleton(ready.folder)
            stack = Stack(skeleton, image.base, image.layers)
        if stack is not None:
            stack = guards.guarded(arguments, stack, ready.folder, land.etc)
        identity = _identity(name)
        request = {
            "op": "start",
            "place": identity,
            "namespaces": userland.namespaces(
                rootless=land.rootless, own_network=own_network
            ),
            "argv": arguments(stack),
        }
        channel = ready.broker.request(request)
        reply = await _await_start(ready.broker, channel, name)
        said = image or Image(None, workdir=userland.DEFAULT_WORKDIR)
        facts = Facts(
            id=identity,
            workdir=spec.workdir or said.workdir,
            env={"PATH": land.path, **said.env, **spec.env},
            tools=frozenset(reply["tools"]),
            enter=_how_to_enter(reply["pid"], land.rootless, own_network),
            own_network=own_network,
            one_uid=land.rootless,
            start_command=said.start_command,
            warnings=said.notes,
        )
        user = said.user if spec.user is None else spec.user
        sandbox = LocalSandbox(ready.broker, channel, facts, user)
        self._remember(sandbox)
        if image is not None:
            await _make_places(sandbox)
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
            ready, self._ready = self._ready, None
            if ready is not None:
                await ready.broker.aclose()
                await anyio.to_thread.run_sync(shelf.remove_folder, ready.folder)


async def _make_places(sandbox: LocalSandbox) -> None:
    """The folders of a task, made from inside: an image's links end there."""
    try:
        with empty_tar() as nothing:
            folders = [sandbox.workdir]
            await sandbox.put(nothing, folders=folders, empty=OPEN_FOLDERS)
    except BaseException as error:
        await sandbox.stop()
        if isinstance(error, TransferFailed):
            raise SandboxStartFailed(str(error), is_final=True) from error
        raise


def _make_userland(bwrap: probing.Bwrap, folder: Path) -> userland.Userland:
    copy_etc(Path("/etc"), folder / "etc")
    rootless = os.geteuid() != 0
    skeleton = folder / "over" if rootless else None
    if skeleton is not None:
        userland.make_skeleton(skeleton)
    return userland.Userland(
        bwrap=str(bwrap.path),
        etc=folder / "etc",
        skeleton=skeleton,
        rootless=rootless,
        prefix=userland.interpreter_prefix(),
        has_env_signals=userland.env_ignores_signals(),
    )


async def _await_start(
    broker: BrokerClient, channel: socket.socket, name: str
) -> wire.Message:
    try:
        reply = await receive(channel)
    except BaseException:
        channel.close()
        raise
    if reply is not None and "pid" in reply:
        return reply
    channel.close()
    why = broker.epitaph() if reply is None else reply["error"]
    raise SandboxStartFailed(f"sandbox {name} did not start: {why}")


def _identity(name: str) -> str:
    return f"{name}-{os.getpid()}-{next(_numbers)}"


def _normal(path: str) -> str:
    """An absolute path without what says nothing: ``//app/./`` is ``/app``."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _is_below(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _how_to_enter(pid: int, rootless: bool, own_network: bool) -> str:
    options = "-m -p -i -u" + (" -n" if own_network else "")
    if rootless:
        options += " -U --preserve-credentials"
    return f"nsenter -t {pid} {options} /bin/sh   (to remove it: kill -9 {pid})"
