"""A server in a sandbox: started, waited for, watched, stopped (spec 2.3, 4, 6)."""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import anyio
from anyio.abc import TaskGroup

from pytest_harbor.errors import (
    ProtocolError,
    SandboxError,
    SandboxStartFailed,
    ServerNotReady,
)
from pytest_harbor.graphs.instances import Instance
from pytest_harbor.graphs.ports import LOOPBACK, reserve_port
from pytest_harbor.graphs.python_environments import built_environment, own_environment
from pytest_harbor.sandboxes.api import ExecResult, Process, Provider, Sandbox
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.output import Masker

TAIL_LINES: Final = 30
_TAIL_BYTES: Final = 64 * 1024
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.1
_PORT_ATTEMPTS: Final = 3
_UNUSABLE_SECONDS: Final = 10.0
"""A server that is starting may answer oddly; one that goes on so is not waited for."""
_PORT_IS_TAKEN: Final = ("address already in use", "eaddrinuse")
ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - a container's own network

Probe = Callable[[str], Awaitable[str | None]]
"""``probe(base_url)`` asks once: ``None`` when the server is ready, else why not yet.

It raises ProtocolError when the server answers what cannot be used.
"""


@dataclass(frozen=True)
class Listening:
    """How a server learns where to listen."""

    port_variable: str
    host_variable: str
    default_port: int
    """In a sandbox with a network of its own."""


@dataclass(frozen=True)
class PythonNeed:
    """A Python of this machine that a command finds as ``python`` (local sandbox)."""

    requirements: Path | None = None
    """Packages of a virtual environment; ``None`` is the runner's own Python."""


@dataclass(frozen=True)
class ServerPlan:
    """A server that is wanted, everything resolved. Times in seconds."""

    what: str
    """For messages: ``env 'library'``, ``agent 'clerk'``."""
    slug: str
    """For the names of instance and sandbox."""
    provider: str
    """The sandbox provider's name."""
    spec: EnvironmentSpec
    listening: Listening
    probe: Probe
    command: tuple[str, ...] = ()
    """argv in the sandbox; empty means what its image runs by itself."""
    python: PythonNeed | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    ready_seconds: float = 180.0
    ttl_seconds: float = 7200.0
    hint: str = ""
    """What to do where there is nothing to start."""


@dataclass(frozen=True)
class Surroundings:
    """What every server of a run needs beside its plan."""

    labels: Mapping[str, str]
    logs: Path
    """Host folder for the servers' logs."""
    masker: Masker
    background: TaskGroup
    """Where servers are watched; it outlives the steps."""
    is_exposed: bool
    """Whether servers on this host's network must be reached from containers."""
    on_death: Callable[[SandboxServer], None]
    """Called when one ends that nobody stopped."""
    dispose: Callable[[Instance], Awaitable[object]]
    """Stops one that failed to come up, cancelled or not."""


class SandboxServer(Instance):
    """A server that runs in a sandbox of its own. Made by :func:`start_server`."""

    sandbox: Sandbox  # it always has one

    def __init__(
        self, plan: ServerPlan, sandbox: Sandbox, around: Surroundings, instance_id: str
    ) -> None:
        now = datetime.now(timezone.utc)
        self.plan = plan
        self.instance_id = instance_id
        self.what = plan.what
        self.sandbox = sandbox
        self.url = ""
        self.created_at_utc = now.isoformat(timespec="milliseconds")
        expires = now + timedelta(seconds=plan.ttl_seconds)
        self.expires_at_utc = expires.isoformat(timespec="milliseconds")
        self.log = around.logs / f"{instance_id}.log"
        self._around = around
        self._death: str | None = None
        self._died = anyio.Event()
        self._watching = anyio.CancelScope()
        self._lifetime = anyio.CancelScope()
        self._stopping = anyio.Lock()
        self._is_up = False
        self.start_seconds = 0.0
        """How long it took from nothing to its first answer."""

    @property
    def death(self) -> str | None:
        return self._death

    async def url_from(self, sandbox: Sandbox | None) -> str:
        return await url_from(self.url, sandbox)

    async def log_tail(self, lines: int = TAIL_LINES) -> str:
        return self._tail(lines)

    def _tail(self, lines: int = TAIL_LINES) -> str:
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return self._around.masker.text("\n".join(text.strip().splitlines()[-lines:]))

    def _with_tail(self, message: str) -> str:
        """A message with the last lines of the server's log."""
        tail = self._tail()
        return f"{message}\nThe end of its log:\n{tail}" if tail else message

    async def start(self) -> None:
        """Start the process and wait until it answers.

        Raises:
            ServerNotReady: it ended, or did not answer in time.
            SandboxStartFailed: there is nothing to start.
            SandboxError: the sandbox cannot be used.
        """
        command = self.plan.command or await self.sandbox.start_command()
        if not command:
            raise SandboxStartFailed(
                f"{self.what}: its image names no command that starts the server"
                + (f"; {self.plan.hint}" if self.plan.hint else "")
            )
        address = await self.sandbox.address()
        shares_ports = ipaddress.ip_address(address).is_loopback
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = reserve_port() if shares_ports else self.plan.listening.default_port
            self.url = f"http://{address}:{port}"
            self._reset()
            process = await self.sandbox.spawn(
                command, env=self._variables(port, shares_ports), log=self.log
            )
            self._around.background.start_soon(
                self._watch, process, name=f"watch {self.what}"
            )
            try:
                await self._until_ready()
            except ServerNotReady as error:
                is_taken = any(text in str(error).lower() for text in _PORT_IS_TAKEN)
                if shares_ports and is_taken and attempt < _PORT_ATTEMPTS:
                    continue
                raise
            self._is_up = True
            self._lifetime.deadline = anyio.current_time() + self.plan.ttl_seconds
            return

    def _reset(self) -> None:
        self._death = None
        self._died = anyio.Event()
        self._watching = anyio.CancelScope()
        self._lifetime = anyio.CancelScope()

    def _variables(self, port: int, shares_ports: bool) -> dict[str, str]:
        listening = self.plan.listening
        is_private = shares_ports and not self._around.is_exposed
        return {
            "PYTHONUNBUFFERED": "1",  # a log without its end explains nothing
            listening.host_variable: LOOPBACK if is_private else ANY_ADDRESS,
            listening.port_variable: str(port),
            **self.plan.env,
        }

    async def _until_ready(self) -> None:
        reason: str | None = "it was not asked"
        pause = _FIRST_PAUSE
        usable_until = anyio.current_time()
        with anyio.move_on_after(self.plan.ready_seconds):
            while True:
                try:
                    reason = await self.plan.probe(self.url)
                    usable_until = anyio.current_time()
                except ProtocolError as error:
                    reason = str(error)
                if anyio.current_time() - usable_until > _UNUSABLE_SECONDS:
                    raise ServerNotReady(
                        self._with_tail(f"{self.what} cannot be used: {reason}")
                    )
                if self._death is not None:
                    raise ServerNotReady(f"{self.what} {self._death}")
                if reason is None:
                    return
                with anyio.move_on_after(pause):
                    await self._died.wait()
                pause = min(2 * pause, _LONGEST_PAUSE)
        raise ServerNotReady(
            self._with_tail(
                f"{self.what} was not ready after {self.plan.ready_seconds:g} s: "
                f"{reason}"
            )
        )

    async def _watch(self, process: Process) -> None:
        """Wait for the server's end, or for the end of its lifetime."""
        with self._watching:
            with self._lifetime as lifetime:
                try:
                    self._die(_how_it_ended(await process.wait()))
                except SandboxError as error:
                    self._die(f"was lost: {error}")
            if lifetime.cancelled_caught:
                seconds = self.plan.ttl_seconds
                self._die(f"reached its lifetime of {seconds:g} s (ttl_seconds)")
                await self._end_sandbox()

    def _die(self, how: str) -> None:
        self._death = self._with_tail(how)
        self._died.set()
        if self._is_up:
            self._around.on_death(self)

    async def _end_sandbox(self) -> None:
        try:
            await self.sandbox.stop()
        except SandboxError:
            return  # the teardown tries again, and reports
        self.is_stopped = True

    async def stop(self) -> None:
        async with self._stopping:
            if self.is_stopped:
                return
            self._watching.cancel()
            await self.sandbox.stop()
            self.is_stopped = True
            if self._death is None:
                self._death = "was stopped"
            self._around.masker.file(self.log)


async def url_from(url: str, sandbox: Sandbox | None) -> str:
    """A URL that this process can use, as commands in ``sandbox`` reach it (spec 6).

    What is on this host's loopback interface is elsewhere for a container.

    Raises:
        UnsupportedByProvider: the sandbox has no network.
    """
    if sandbox is None:
        return url
    host_address = await sandbox.host_address()
    parts = urlsplit(url)
    if not _is_loopback(parts.hostname or "") or _is_loopback(host_address):
        return url
    user, at, _ = parts.netloc.rpartition("@")
    port = "" if parts.port is None else f":{parts.port}"
    return urlunsplit(parts._replace(netloc=f"{user}{at}{host_address}{port}"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _how_it_ended(result: ExecResult) -> str:
    return f"ended by itself (exit code {result.exit_code})"


async def start_server(
    plan: ServerPlan,
    provider: Provider,
    around: Surroundings,
    register: Callable[[SandboxServer], None],
) -> SandboxServer:
    """Start a sandbox and the server in it, and wait until it answers.

    ``register`` gets it before anything else happens, so that it cannot leak. When it
    does not come up, it is stopped here.

    Raises:
        ServerNotReady, SandboxError: as :meth:`SandboxServer.start`, ``Provider.start``.
    """
    instance_id = f"{_slug(plan.slug)}-{secrets.token_hex(4)}"
    started = time.monotonic()
    plan = await _with_python(plan)
    sandbox = await provider.start(plan.spec, name=instance_id, labels=around.labels)
    server = SandboxServer(plan, sandbox, around, instance_id)
    register(server)
    try:
        await server.start()
    except BaseException:
        await around.dispose(server)
        raise
    server.start_seconds = time.monotonic() - started
    return server


async def _with_python(plan: ServerPlan) -> ServerPlan:
    """The plan with the Python that it needs: built, shown, and first on the PATH."""
    if plan.python is None:
        return plan
    if plan.python.requirements is None:
        environment = own_environment()
    else:
        environment = await built_environment(plan.python.requirements)
    shown = (*plan.spec.read_only_folders, *environment.shown)
    return replace(
        plan,
        spec=replace(plan.spec, read_only_folders=shown),
        command=environment.command(plan.command),
        env={**dict(environment.variables), **plan.env},
    )


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:40].strip("-.") or "server"
