"""One running container as a :class:`~pytest_harbor.sandboxes.api.Sandbox`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import docker

from pytest_harbor.errors import (
    SandboxError,
    SandboxLost,
    SandboxStartFailed,
    TransferFailed,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import (
    MAX_CAPTURED_BYTES,
    VERIFIER_TOOLS,
    Download,
    Downloaded,
    ExecResult,
    Network,
    Process,
    Sandbox,
    TransferLimits,
    Upload,
    User,
)
from pytest_harbor.sandboxes.docker import exec as execs
from pytest_harbor.sandboxes.docker import files
from pytest_harbor.sandboxes.docker.client import NOT_FOUND, DaemonError, Engine
from pytest_harbor.sandboxes.docker.images import Image
from pytest_harbor.sandboxes.docker.networks import Networks
from pytest_harbor.sandboxes.docker.scripts import SHELL
from pytest_harbor.sandboxes.docker.stream import ExecStream
from pytest_harbor.sandboxes.docker.sweep import KEPT_SUFFIX
from pytest_harbor.sandboxes.output import CappedOutput

_KILLED = 137
_NO_PROGRAM = 127

_SHELL_IS_GONE = (
    "no such file or directory",
    "executable file not found",
    "permission denied",
    "exec format error",
)
"""What container runtimes say of a program that is not there or cannot be started."""
_POLL_SECONDS = 0.05
_SETTLE_SECONDS = 0.5
_LAST_LOG_LINES = 10


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
        # Folders that the first transfer makes; a request of their own would cost as
        # much as a whole command.
        self._unmade = tuple(unmade)
        # Those of them that the image does not have, and when they were made.
        self._absent = frozenset(absent)
        self._made: dict[str, int] = {}
        self._tools: frozenset[str] | None = None
        self._expected_user: str | None = None
        self._waiting: execs.WaitingShell | None = None
        self._stopped = False
        self._death = ""

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
        shell = self._shell_for(call)
        if shell is not None:
            call = replace(call, marker=shell.marker)
        with contextlib.closing(_Output(call, log, error_log)) as output:
            try:
                ended = await execs.run(
                    self._engine,
                    call,
                    output.stream,
                    timeout_seconds=timeout_seconds,
                    kill=self._kill,
                    shell=shell,
                )
            except DaemonError as error:
                return await self._never_ran(await self._refused(call, error), error)
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
            return await self._never_ran(await self._cannot_run(call, output.text()))
        if ended.exit_code is None and not ended.timed_out:
            ended.exit_code = await self._exit_code(ended.exec_id)
        return output.result(
            ended.exit_code, time.monotonic() - begun, timed_out=ended.timed_out
        )

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
        self._let_go()
        output = _Output(call, log)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(output.close)
            try:
                connection = await execs.start(self._engine, call)
            except DaemonError as error:
                raise await self._refused(call, error) from error
            on_failure.callback(connection.close)
            try:
                began = await execs.read_to_begin(connection, output.stream)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True), contextlib.suppress(SandboxLost):
                    await self._kill(call, output.stream)
                raise
            if not began:
                raise await self._cannot_run(call, output.text())
            on_failure.pop_all()
        self._note(output.stream)
        return _Spawned(self, call, connection, output)

    async def upload(
        self, uploads: Sequence[Upload], *, empty: Sequence[str] = ()
    ) -> None:
        self._check_alive()
        fresh, others = files.split(uploads, empty)
        await self._start_waiting_shell()
        try:
            if empty:
                await self._put(fresh, empty)
            if others:
                await self._put(others, ())
        except DaemonError as error:
            raise await self._transfer_error(error, uploads, empty) from error

    def expect_command(self, user: User | None = None) -> None:
        self._expected_user = self._name_of(user)

    async def _start_waiting_shell(self) -> None:
        """Start the shell of an expected command; without one it is started as any other."""
        user, self._expected_user = self._expected_user, None
        self._let_go()
        if user is not None:
            with contextlib.suppress(DaemonError):
                self._waiting = await execs.WaitingShell.start(
                    self._engine, self._container, user
                )

    def _shell_for(self, call: execs.ExecCall) -> execs.WaitingShell | None:
        """The shell that waits for this command, if it is this one that it waits for."""
        shell = self._waiting
        if shell is None or shell.user != call.user or call.script() is None:
            self._let_go()
            return None
        self._waiting = None
        return shell

    def _let_go(self) -> None:
        """End a shell that waits in vain: its input ends."""
        shell, self._waiting = self._waiting, None
        if shell is not None:
            shell.connection.close()

    async def _put(self, uploads: Sequence[Upload], empty: Sequence[str]) -> None:
        unmade = self._unmade
        made_at = await self._engine.call(
            lambda client: files.put(
                client, self._container, uploads, empty=empty, folders=unmade
            )
        )
        self._made.update(dict.fromkeys(self._absent.intersection(unmade), made_at))
        for upload in uploads:
            for folder in tuple(self._made):
                if files.may_reach(upload.target, folder):
                    del self._made[folder]
        self._unmade = ()

    async def _ready(self) -> None:
        """Make sure that it is alive and complete. Raises SandboxLost."""
        self._check_alive()
        if self._unmade:
            try:
                await self._put((), ())
            except DaemonError as error:
                raise await self._lost(error.text) from error

    async def download(
        self, downloads: Sequence[Download], *, limits: TransferLimits | None = None
    ) -> list[Downloaded]:
        await self._ready()
        return [await self._download(wanted, limits) for wanted in downloads]

    async def _download(
        self, wanted: Download, limits: TransferLimits | None
    ) -> Downloaded:
        made_at = self._made.get(wanted.source)
        try:
            return await self._engine.call(
                lambda client: files.get(
                    client, self._container, wanted, limits, made_at=made_at
                )
            )
        except DaemonError as error:
            if error.status is not None and await self._is_there():
                return Downloaded(wanted.source, "failed", reason=error.text)
            raise await self._lost(error.text) from error

    async def read_bytes(
        self, path: str, *, max_bytes: int = MAX_CAPTURED_BYTES
    ) -> bytes | None:
        await self._ready()
        try:
            return await self._engine.call(
                lambda client: files.read(client, self._container, path, max_bytes)
            )
        except DaemonError as error:
            if error.status is not None and await self._is_there():
                return None
            raise await self._lost(error.text) from error

    async def address(self) -> str:
        return (await self._network())["IPAddress"]

    async def host_address(self) -> str:
        return (await self._network())["Gateway"]

    async def _network(self) -> Mapping[str, str]:
        """Facts of the network that it is in; a running container's do not change."""
        self._check_alive()
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
            raise await self._lost(error.text) from error
        for network in facts["NetworkSettings"]["Networks"].values():
            if network["IPAddress"]:
                return dict(network)
        raise UnsupportedByProvider(f"container {self.id} has no network")

    async def set_network(self, network: Network) -> None:
        self._check_alive()
        try:
            await self._networks.switch(self._engine, self._container, network)
        except DaemonError as error:
            raise await self._lost(
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
        if self._stopped:
            return
        self._stopped = True
        self._let_go()
        self._remove(self._container, self.id)

    async def keep(self) -> None:
        """Leave it up for a person: neither ``aclose`` nor a later sweep removes it.

        Its ``id`` changes, because a sweep knows it by its name. Raises SandboxLost.
        """
        self._check_alive()
        self._let_go()
        kept = f"{self.id}{KEPT_SUFFIX}"
        try:
            await self._engine.call(lambda client: client.rename(self._container, kept))
        except DaemonError as error:
            raise await self._lost(error.text) from error
        self.id = kept
        self._forget(self._container)

    async def commit(self, repository: str, tag: str, changes: list[str]) -> None:
        """Make an image of what it is now, ``changes`` being instructions as in a Dockerfile.

        Raises:
            SandboxStartFailed: the daemon cannot.
            SandboxLost: it died.
        """
        self._check_alive()

        def work(client: docker.APIClient) -> None:
            client.commit(self._container, repository, tag, changes=changes)

        try:
            await self._engine.call_long(work)
        except DaemonError as error:
            if error.status is None or not await self._is_there():
                raise await self._lost(error.text) from error
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

    def _check_alive(self) -> None:
        if self._stopped:
            raise SandboxLost(f"{self.id} has been stopped")
        if self._death:
            raise SandboxLost(self._death)

    async def _kill(self, call: execs.ExecCall, stream: ExecStream) -> None:
        """Kill what ``call`` started; if that fails, the container with it."""
        since = stream.begin.start_ticks if stream.begin else 0
        try:
            if await execs.kill_tree(self._engine, self._container, call.marker, since):
                return
            reason = "its processes could not be killed one by one"
        except DaemonError as error:
            reason = error.text
        self._death = (
            f"{self.id}: a command could not be ended by itself ({reason}); "
            "the whole container was killed"
        )
        with contextlib.suppress(DaemonError):
            await self._engine.call(lambda client: client.kill(self._container))
        raise SandboxLost(self._death)

    async def _exit_code(self, exec_id: str) -> int:
        """The exit code of a wrapper that died without a word (somebody killed it)."""
        try:
            facts = await self._engine.call(lambda client: client.exec_inspect(exec_id))
        except DaemonError as error:
            raise await self._lost(error.text) from error
        # The daemon hears of an exec's end before it hears of its container's.
        with anyio.move_on_after(_SETTLE_SECONDS):
            while await self._is_there():  # noqa: ASYNC110 - nobody tells us
                await anyio.sleep(_POLL_SECONDS)
        if not await self._is_there():
            raise await self._lost("it ended while a command ran")
        code = facts.get("ExitCode")
        return _KILLED if code is None else int(code)

    async def _never_ran(
        self, error: SandboxError, cause: DaemonError | None = None
    ) -> ExecResult:
        """The result of a command whose shell is gone; raises ``error`` otherwise.

        Where commands ran before and the container is well, the agent has removed
        the shell. That is a missing program as elsewhere, and no outage: nobody
        can void a bad score by deleting ``/bin/sh``.
        """
        shell_is_gone = any(hint in str(error).lower() for hint in _SHELL_IS_GONE)
        if self._tools is None or not shell_is_gone or not await self._is_there():
            raise error from cause
        return ExecResult(_NO_PROGRAM, "", f"{error}\n")

    async def _refused(self, call: execs.ExecCall, error: DaemonError) -> SandboxError:
        """The error for an exec that the daemon would not even start."""
        if error.status is None:
            return await self._lost(error.text)
        # Some daemons answer so where others let the exec end without a word.
        return await self._cannot_run(call, error.text)

    async def _cannot_run(self, call: execs.ExecCall, output: str) -> SandboxError:
        """Why not even our own wrapper ran: the user, the shell, or the container."""
        said = output.strip() or "no reason given"
        state = await self._state()
        if not state.get("Running"):
            return await self._lost(said)
        if call.user.partition(":")[0] not in ("0", "root"):
            probe = execs.ExecCall(self._container, ["true"], "0", "/", {})
            stream = ExecStream(probe.token, lambda _: None, lambda _: None)
            with contextlib.suppress(DaemonError):
                ended = await execs.run(
                    self._engine, probe, stream, timeout_seconds=30, kill=self._kill
                )
                if ended.exit_code == 0:
                    return UnsupportedByProvider(
                        f"docker cannot run commands as user {call.user!r} in image "
                        f"{self._image.name}: {said}. Is the user in the image's "
                        "/etc/passwd?"
                    )
        return SandboxLost(
            f"{self.id} cannot run commands (image {self._image.name}, shell {SHELL}): "
            f"{said}"
        )

    async def _transfer_error(
        self, error: DaemonError, uploads: Sequence[Upload], empty: Sequence[str]
    ) -> SandboxError:
        if error.status is None or not await self._is_there():
            return await self._lost(error.text)
        what = ", ".join([*empty, *(upload.target for upload in uploads)])
        return TransferFailed(
            f"cannot copy to {what} in {self.id}: {error.text}",
            blocked=files.is_blocked(error.text),
        )

    async def _is_there(self) -> bool:
        return bool((await self._state()).get("Running"))

    async def _state(self) -> dict[str, Any]:
        try:
            facts = await self._engine.call(
                lambda client: client.inspect_container(self._container)
            )
        except DaemonError as error:
            gone = error.status == NOT_FOUND
            return {"Error": "it was removed" if gone else error.text}
        return dict(facts["State"])

    async def _lost(self, reason: str) -> SandboxLost:
        """The error for a container that died, with what the daemon knows of it."""
        state = await self._state()
        if not state.get("Running"):
            facts = _how_it_died(state)
            logs = await self._last_log_lines()
            reason = "; ".join(part for part in (*facts, reason) if part) + logs
            self._death = f"{self.id} is dead: {reason}"
            return SandboxLost(self._death)
        return SandboxLost(f"{self.id} cannot be used: {reason}")

    async def _last_log_lines(self) -> str:
        def read(client: docker.APIClient) -> bytes:
            return bytes(client.logs(self._container, tail=_LAST_LOG_LINES))

        try:
            text = (await self._engine.call(read)).decode(errors="replace").strip()
        except DaemonError:
            return ""
        return f"\n{text}" if text else ""


def _how_it_died(state: Mapping[str, Any]) -> Iterator[str]:
    if state.get("OOMKilled"):
        yield "it ran out of memory (environment.memory_mb)"
    if state.get("ExitCode") is not None:
        yield f"exit code {state['ExitCode']}"
    if state.get("Error"):
        yield str(state["Error"])


class _Output:
    """Both streams of one command, their log files, and the parser that fills them."""

    def __init__(
        self, call: execs.ExecCall, log: Path | None, error_log: Path | None = None
    ) -> None:
        self._files: list[BinaryIO] = []
        for path in (log, error_log):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._files.append(path.open("ab"))
        logs: list[BinaryIO | None] = [*self._files] or [None]
        self.stdout = CappedOutput(log=logs[0])
        self.stderr = CappedOutput(log=logs[-1])
        self.stream = ExecStream(call.token, self.stdout.write, self.stderr.write)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def text(self) -> str:
        return self.stdout.text() + self.stderr.text()

    def result(
        self, exit_code: int | None, seconds: float, *, timed_out: bool = False
    ) -> ExecResult:
        return ExecResult(
            exit_code=exit_code,
            stdout=self.stdout.text(),
            stderr=self.stderr.text(),
            timed_out=timed_out,
            truncated=self.stdout.truncated or self.stderr.truncated,
            seconds=seconds,
        )


class _Spawned(Process):
    """A command that runs on. A thread takes its output, so that it never blocks."""

    def __init__(
        self,
        sandbox: DockerSandbox,
        call: execs.ExecCall,
        connection: execs.Connection,
        output: _Output,
    ) -> None:
        self._sandbox = sandbox
        self._call = call
        self._connection = connection
        self._output = output
        self._begun = time.monotonic()
        self._killed = False
        self._result: ExecResult | None = None
        self._thread = threading.Thread(
            target=self._take_output, name=f"{sandbox.id} output", daemon=True
        )
        self._thread.start()

    def _take_output(self) -> None:
        stream = self._output.stream
        try:
            while stream.exit_code is None and (
                data := self._connection.receive_blocking()
            ):
                stream.feed(data)
        finally:
            stream.flush()
            self._connection.close()
            self._output.close()

    async def wait(self) -> ExecResult:
        await self._output_taken()
        if self._result is None:
            code = self._output.stream.exit_code
            if code is None:
                code = await self._exit_code()
            self._sandbox._note(self._output.stream)  # noqa: SLF001 - its other half
            self._result = self._output.result(code, time.monotonic() - self._begun)
        return self._result

    async def _output_taken(self) -> None:
        # An event would have to be set from a thread that outlives the event loop.
        while self._thread.is_alive():  # noqa: ASYNC110
            await anyio.sleep(_POLL_SECONDS)

    async def _exit_code(self) -> int:
        if self._killed:
            return _KILLED
        return await self._sandbox._exit_code(self._connection.exec_id)  # noqa: SLF001 - its other half

    async def kill(self) -> None:
        with anyio.CancelScope(shield=True):
            self._killed = True
            await self._sandbox._kill(self._call, self._output.stream)  # noqa: SLF001 - its other half
            with anyio.move_on_after(execs.DRAIN_SECONDS):
                await self._output_taken()
            self._connection.hang_up()
