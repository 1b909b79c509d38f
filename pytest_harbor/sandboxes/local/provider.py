"""The local provider: sandboxes on this machine, without images."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from pytest_harbor.sandboxes.api import (
    Capabilities,
    EnvironmentSpec,
    Provider,
    Sandbox,
    Upload,
    User,
)
from pytest_harbor.sandboxes.local import probing, userland
from pytest_harbor.sandboxes.local.client import BrokerClient, receive
from pytest_harbor.sandboxes.local.etc import copy_etc
from pytest_harbor.sandboxes.local.sandbox import Facts, LocalSandbox, refuse_user
from pytest_harbor.sandboxes.owner import Owner
from pytest_harbor.settings import LocalMode

DEFAULT_WORKDIR = "/app"
FOLDER_PREFIX = "pytest-harbor-local-"
_OWNER_FILE = "owner"
_NOT_ENVIRONMENT = frozenset({"Dockerfile", "docker-compose.yaml"})
_numbers = itertools.count(1)


@dataclass(frozen=True)
class _Ready:
    """What the provider found and made on first use."""

    folder: Path
    broker: BrokerClient
    land: userland.Userland


class LocalProvider(Provider):
    """Namespaces by bubblewrap, or in-place where a container forbids them."""

    name: ClassVar[str] = "local"

    def __init__(self, *, mode: LocalMode = "auto") -> None:
        self._mode = mode
        self._lock = threading.Lock()
        self._ready: _Ready | None = None
        self._found: Capabilities | None = None
        self._sandboxes: dict[str, LocalSandbox] = {}

    async def probe(self) -> Capabilities:
        if self._found is None:
            self._found = await self._probe()
        return self._found

    async def _probe(self) -> Capabilities:
        try:
            bwrap = await anyio.to_thread.run_sync(probing.find_bwrap)
        except SandboxUnavailable as error:
            return Capabilities(False, reason=str(error))
        try:
            await anyio.to_thread.run_sync(self._prepare, bwrap)
            sandbox = await self._start_namespaces(
                EnvironmentSpec(network="no-network"), name="probe"
            )
            result = await sandbox.exec(["/bin/sh", "-c", "echo works"], cwd="/")
            await sandbox.stop()
        except (SandboxLost, SandboxStartFailed, SandboxUnavailable) as error:
            return probing.unavailable(str(error))
        if result.stdout != "works\n":
            return probing.unavailable(result.output)
        return probing.namespace_capabilities(bwrap)

    def _prepare(self, bwrap: probing.Bwrap) -> _Ready:
        with self._lock:
            if self._ready is None:
                folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX)).resolve()
                (folder / _OWNER_FILE).write_text(str(Owner.current()))
                copy_etc(Path("/etc"), folder / "etc")
                rootless = os.geteuid() != 0
                skeleton = folder / "over" if rootless else None
                if skeleton is not None:
                    userland.make_skeleton(skeleton)
                land = userland.Userland(
                    bwrap=str(bwrap.path),
                    etc=folder / "etc",
                    skeleton=skeleton,
                    rootless=rootless,
                    prefix=userland.interpreter_prefix(),
                    has_env_signals=userland.env_ignores_signals(),
                )
                self._ready = _Ready(folder, BrokerClient(folder), land)
            return self._ready

    def check(self, spec: EnvironmentSpec, users: Sequence[User | None]) -> None:
        refuse_containers(spec)
        if spec.network == "allowlist":
            raise UnsupportedByProvider(
                "network_mode = 'allowlist': the local sandbox cannot filter hosts; "
                "use public or no-network"
            )
        for user in (spec.user, *users):
            refuse_user(user, one_uid=os.geteuid() != 0)
            _refuse_unknown_user(user)

    async def start(
        self, spec: EnvironmentSpec, *, name: str, labels: Mapping[str, str]
    ) -> Sandbox:
        found = await self.probe()
        if not found.available:
            raise SandboxUnavailable(found.reason)
        self.check(spec, ())
        with anyio.move_on_after(spec.start_timeout_seconds) as scope:
            sandbox = await self._start_namespaces(spec, name=name)
            try:
                if spec.files is not None:
                    files = Upload(
                        spec.files, sandbox.workdir, exclude=_NOT_ENVIRONMENT
                    )
                    await sandbox.upload([files])
            except BaseException:
                await sandbox.stop()
                raise
        if scope.cancelled_caught:
            raise SandboxStartFailed(
                f"sandbox {name} was not up after {spec.start_timeout_seconds:g} s"
            )
        return sandbox

    async def _start_namespaces(
        self, spec: EnvironmentSpec, *, name: str
    ) -> LocalSandbox:
        ready = self._ready
        assert ready is not None
        own_network = spec.network == "no-network"
        workdir = spec.workdir or DEFAULT_WORKDIR
        land = ready.land
        flags = userland.namespaces(rootless=land.rootless, own_network=own_network)
        identity = f"{name}-{os.getpid()}-{next(_numbers)}"
        channel = ready.broker.request(
            {
                "op": "start",
                "place": identity,
                "namespaces": flags,
                "argv": userland.bwrap_arguments(
                    land,
                    own_network=own_network,
                    workdir=workdir,
                    mounts=userland.host_mounts(),
                ),
            }
        )
        try:
            reply = await receive(channel)
        except BaseException:
            channel.close()
            raise
        if reply is None or "pid" not in reply:
            channel.close()
            why = ready.broker.epitaph() if reply is None else reply["error"]
            raise SandboxStartFailed(f"sandbox {name} did not start: {why}")
        facts = Facts(
            id=identity,
            workdir=workdir,
            env={"PATH": land.path, **spec.env},
            tools=frozenset(reply["tools"]),
            enter=_how_to_enter(reply["pid"], land.rootless, own_network),
            one_uid=land.rootless,
        )
        sandbox = LocalSandbox(ready.broker, channel, facts, spec.user)
        self._sandboxes[identity] = sandbox
        return sandbox

    async def sweep(self) -> int:
        return await anyio.to_thread.run_sync(sweep_folders)

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            for sandbox in list(self._sandboxes.values()):
                await sandbox.stop()
            self._sandboxes.clear()
            ready, self._ready = self._ready, None
            if ready is not None:
                await ready.broker.aclose()
                await anyio.to_thread.run_sync(_remove_folder, ready.folder)


def refuse_containers(spec: EnvironmentSpec) -> None:
    """Raises UnsupportedByProvider for a spec that needs an image."""
    wanted = {
        "docker_image": spec.image,
        "environment/Dockerfile": spec.build_context,
        "environment/docker-compose.yaml": spec.compose_file,
    }
    for key, value in wanted.items():
        if value is not None:
            raise UnsupportedByProvider(
                f"{key}: the local sandbox does not build or pull images; "
                "use --harbor-sandbox docker"
            )


def _refuse_unknown_user(user: User | None) -> None:
    if not isinstance(user, str) or user.isdecimal():
        return
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise UnsupportedByProvider(
            f"user = {user!r}: the local sandbox has the users of this machine's "
            "/etc/passwd, and there is none of that name; "
            "add it here, or use --harbor-sandbox docker"
        ) from None


def _how_to_enter(pid: int, rootless: bool, own_network: bool) -> str:
    options = "-m -p -i -u" + (" -n" if own_network else "")
    if rootless:
        options += " -U --preserve-credentials"
    return f"nsenter -t {pid} {options} /bin/sh   (to remove it: kill -9 {pid})"


def sweep_folders() -> int:
    """Remove the temporary folders of dead owners."""
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        facts = folder.lstat()
        if folder.is_symlink() or facts.st_uid != os.geteuid():
            continue
        try:
            owner = Owner.parse((folder / _OWNER_FILE).read_text())
        except OSError:
            continue
        if owner is not None and owner.is_dead:
            _remove_folder(folder)
            removed += 1
    return removed


def _remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
