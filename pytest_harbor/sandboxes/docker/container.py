"""One running container as a :class:`~pytest_harbor.sandboxes.api.Sandbox`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import docker

from pytest_harbor.errors import (
    SandboxError,
    SandboxLost,
    SandboxStartFailed,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import (
    MAX_CAPTURED_BYTES,
    VERIFIER_TOOLS,
    ExecResult,
    PipedProcess,
    Process,
    Sandbox,
)
from pytest_harbor.sandboxes.docker import endings
from pytest_harbor.sandboxes.docker import exec as execs
from pytest_harbor.sandboxes.docker.client import DaemonError, Engine
from pytest_harbor.sandboxes.docker.command_output import CommandOutput
from pytest_harbor.sandboxes.docker.images import Image
from pytest_harbor.sandboxes.docker.life import Life
from pytest_harbor.sandboxes.docker.networks import Networks
from pytest_harbor.sandboxes.docker.piped import PipedCommand
from pytest_harbor.sandboxes.docker.scripts import SHELL
from pytest_harbor.sandboxes.docker.spawned import SpawnedCommand
from pytest_harbor.sandboxes.docker.stream import ExecStream
from pytest_harbor.sandboxes.docker.sweep import KEPT_SUFFIX
from pytest_harbor.sandboxes.docker.transfers import Transfers
from pytest_harbor.sandboxes.docker.waiting_shell import ExpectedCommand
from pytest_harbor.sandboxes.environment import Network, User
from pytest_harbor.sandboxes.transfer_types import (
    Download,
    Downloaded,
    TransferLimits,
    Upload,
)


class DockerSandbox(Sandbox):
    """A started container. Made by ``DockerProvider.start``."""

    provider = "docker"

    def __init__(
        self,
        engine: Engine,
        container: str,
        *,
        name: str,
        image: Image,
        workdir: str,
        user: User | None,
        remove: Callable[[str, str], None],
        forget: Callable[[str], object],
        unmade: Sequence[str] = (),
        absent: Sequence[str] = (),
        unenforced: Sequence[str] = (),
        networks: Networks | None = None,
    ) -> None:
        self.id = name
        self.workdir = workdir
        self.default_user = user
        self.unenforced = tuple(unenforced)
        self._engine = engine
        self._container = container
        self._image = image
        self._networks = networks or Networks(Network())
        self._remove = remove
        self._forget = forget
        self._tools: frozenset[str] | None = None
        self._life = Life(engine, container, name, image.name)
        self._transfers = Transfers(self._life, unmade=unmade, absent=absent)
        self._expected = ExpectedCommand(engine, container)

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        user: User | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_seconds: float | None = None,
        log: Path | None = None,
        error_log: Path | None = None,
    ) -> ExecResult:
        call = await self._call(command, user, cwd, env, stdin)
        begun = time.monotonic()
        shell = self._expected.shell_for(call)
        if shell is not None:
            call = replace(call, marker=shell.marker)
        with contextlib.closing(CommandOutput(call, log, error_log)) as output:
            try:
                ended = await execs.run(
                    self._engine,
                    call,
                    output.stream,
                    timeout_seconds=timeout_seconds,
                    kill=partial(endings.kill, self._life),
                    shell=None if shell is None else shell.connection,
                )
            except DaemonError as error:
                return await self._never_ran(
                    await endings.refused(self._life, call, error), error
                )
        self._note(output.stream)
        if ended.never_began and shell is not None:  # it did not live that long
            return await self.exec(
                command,
                user=user,
                cwd=cwd,
                env=env,
                timeout_seconds=timeout_seconds,
                log=log,
                error_log=error_log,
            )
        if ended.never_began:
            return await self._never_ran(
                await endings.never_began(self._life, call, output.text())
            )
        code = ended.exit_code
        if code is None and not ended.timed_out:
            code = await endings.exit_code(self._life, ended.exec_id)
        return output.result(code, time.monotonic() - begun, timed_out=ended.timed_out)

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        user: User | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> Process:
        call = await self._call(command, user, cwd, env, None)
        output = CommandOutput(call, log)
        connection = await self._begun(call, output)
        return SpawnedCommand(self._life, call, connection, output, note=self._note)

    async def spawn_piped(
        self,
        command: str | Sequence[str],
        *,
        user: User | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> PipedProcess:
        call = await self._call(command, user, cwd, env, b"")
        said = bytearray()
        output = CommandOutput(call, log, stdout=said.extend)
        connection = await self._begun(call, output)
        return PipedCommand(self._life, call, connection, output, said)

    async def _begun(
        self, call: execs.ExecCall, output: CommandOutput
    ) -> execs.Connection:
        """Start a command that runs on. Raises as :meth:`spawn`; ``output`` is closed then."""
        self._expected.let_go()
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(output.close)
            try:
                connection = await execs.start(self._engine, call)
            except DaemonError as error:
                raise await endings.refused(self._life, call, error) from error
            on_failure.callback(connection.close)
            try:
                began = await execs.read_to_begin(connection, output.stream)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True), contextlib.suppress(SandboxLost):
                    await endings.kill(self._life, call, output.stream)
                raise
            if not began:
                raise await endings.never_began(self._life, call, output.text())
            on_failure.pop_all()
        self._note(output.stream)
        return connection

    async def upload(
        self, uploads: Sequence[Upload], *, empty: Sequence[str] = ()
    ) -> None:
        self._life.check()
        await self._expected.start_shell()
        await self._transfers.upload(uploads, empty)

    def expect_command(self, user: User | None = None) -> None:
        self._expected.announce(self._name_of(user))

    async def download(
        self, downloads: Sequence[Download], *, limits: TransferLimits | None = None
    ) -> list[Downloaded]:
        await self._ready()
        return [await self._transfers.download(wanted, limits) for wanted in downloads]

    async def read_bytes(
        self, path: str, *, max_bytes: int = MAX_CAPTURED_BYTES
    ) -> bytes | None:
        await self._ready()
        return await self._transfers.read_bytes(path, max_bytes)

    async def address(self) -> str:
        return (await self._network())["IPAddress"]

    async def host_address(self) -> str:
        return (await self._network())["Gateway"]

    async def _network(self) -> Mapping[str, str]:
        """Facts of the network that it is in; a running container's do not change."""
        self._life.check()
        if self._networks.egresses:
            raise UnsupportedByProvider(
                f"container {self.id} has an allowlist: this host and it cannot reach "
                "each other"
            )
        try:
            facts = await self._engine.call(
                lambda client: client.inspect_container(self._container)
            )
        except DaemonError as error:
            raise await self._life.lost(error.text) from error
        for network in facts["NetworkSettings"]["Networks"].values():
            if network["IPAddress"]:
                return dict(network)
        raise UnsupportedByProvider(f"container {self.id} has no network")

    async def set_network(self, network: Network) -> None:
        self._life.check()
        try:
            await self._networks.switch(self._engine, self._container, network)
        except DaemonError as error:
            raise await self._life.lost(
                f"its network cannot be switched: {error.text}"
            ) from error

    async def network_refusals(self) -> Sequence[str]:
        return await self._networks.refused(self._engine)

    async def start_command(self) -> tuple[str, ...]:
        return self._image.command

    async def initial_tools(self) -> frozenset[str]:
        if self._tools is None:
            await self.exec(["true"], user=0, cwd="/")
        return self._tools or frozenset()

    async def stop(self) -> None:
        if self._life.is_stopped:
            return
        self._life.is_stopped = True
        self._expected.let_go()
        self._remove(self._container, self.id)

    async def keep(self) -> None:
        """Leave it up for a person: neither ``aclose`` nor a later sweep removes it.

        Its ``id`` changes, because a sweep knows it by its name. Raises SandboxLost.
        """
        self._life.check()
        self._expected.let_go()
        kept = f"{self.id}{KEPT_SUFFIX}"
        try:
            await self._engine.call(lambda client: client.rename(self._container, kept))
        except DaemonError as error:
            raise await self._life.lost(error.text) from error
        self.id = self._life.name = kept
        self._forget(self._container)

    async def commit(self, repository: str, tag: str, changes: list[str]) -> None:
        """Make an image of what it is now, ``changes`` being instructions as in a Dockerfile.

        Raises:
            SandboxStartFailed: the daemon cannot.
            SandboxLost: it died.
        """
        self._life.check()

        def work(client: docker.APIClient) -> None:
            client.commit(self._container, repository, tag, changes=changes)

        try:
            await self._engine.call_long(work)
        except DaemonError as error:
            if error.status is None or not await self._life.is_running():
                raise await self._life.lost(error.text) from error
            raise SandboxStartFailed(
                f"docker cannot make image {repository}:{tag}: {error.text}"
            ) from error

    def how_to_enter(self) -> str:
        removal = f"docker rm -f -v {self.id}{self._networks.removal}"
        return f"docker exec -it {self.id} sh    (remove it: {removal})"

    async def _call(
        self,
        command: str | Sequence[str],
        user: User | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: bytes | None,
    ) -> execs.ExecCall:
        await self._ready()
        if self._tools is None and env and "PATH" in env:
            # A PATH of this one command says nothing about the image's tools.
            await self.initial_tools()
        return execs.ExecCall(
            self._container,
            [SHELL, "-c", command] if isinstance(command, str) else list(command),
            user=self._name_of(user),
            cwd=cwd or self.workdir,
            env={**self._networks.variables, **(env or {})},
            ask_tools=VERIFIER_TOOLS if self._tools is None else (),
            stdin=stdin,
        )

    def _name_of(self, user: User | None) -> str:
        chosen = self.default_user if user is None else user
        return str(self._image.user or "0" if chosen is None else chosen)

    def _note(self, stream: ExecStream) -> None:
        """Keep what a command's wrapper told of the container."""
        self.oom_kills = max(self.oom_kills, stream.oom_kills)
        if self._tools is None and stream.begin is not None:
            self._tools = stream.begin.tools

    async def _ready(self) -> None:
        """Make sure that it is alive and complete. Raises SandboxLost."""
        self._life.check()
        await self._transfers.complete()

    async def _never_ran(
        self, error: SandboxError, cause: DaemonError | None = None
    ) -> ExecResult:
        """The result of a command that could not be run; mostly raises ``error``."""
        has_run_others = self._tools is not None
        if has_run_others and (
            result := await endings.as_missing_program(self._life, error)
        ):
            return result
        raise error from cause
