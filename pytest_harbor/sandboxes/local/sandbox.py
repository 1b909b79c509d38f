"""A local sandbox: what the engine asks, as requests to the broker."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread

from pytest_harbor.errors import SandboxLost, TransferFailed, UnsupportedByProvider
from pytest_harbor.sandboxes import transfer
from pytest_harbor.sandboxes.api import (
    MAX_CAPTURED_BYTES,
    ExecResult,
    PipedProcess,
    Process,
    Sandbox,
)
from pytest_harbor.sandboxes.environment import User
from pytest_harbor.sandboxes.local.broker import wire
from pytest_harbor.sandboxes.local.client import BrokerClient, receive
from pytest_harbor.sandboxes.local.piped import LocalPipedProcess, Pipes
from pytest_harbor.sandboxes.local.process import KILL_SECONDS, LocalProcess
from pytest_harbor.sandboxes.local.refusals import refuse_user
from pytest_harbor.sandboxes.transfer_types import (
    Download,
    Downloaded,
    TransferLimits,
    Upload,
)

OPEN_FOLDERS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
"""Writable for every user of the sandbox."""


@dataclass(frozen=True)
class Facts:
    """What the start of a sandbox settled."""

    id: str
    workdir: str
    env: Mapping[str, str]
    tools: frozenset[str]
    enter: str
    one_uid: bool
    own_network: bool = False
    start_command: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass
class _Life:
    """The life line of a sandbox."""

    channel: socket.socket
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    is_over: bool = False


class LocalSandbox(Sandbox):
    """Made by ``LocalProvider``; every command and transfer goes through its broker."""

    provider = "local"

    def __init__(
        self,
        broker: BrokerClient,
        channel: socket.socket,
        facts: Facts,
        default_user: User | None,
    ) -> None:
        self._broker = broker
        self._life = _Life(channel)
        self._facts = facts
        self._spawned: list[LocalProcess] = []
        self.id = facts.id
        self.workdir = facts.workdir
        self.default_user = default_user
        self.warnings = facts.warnings

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
        process = self._launch(
            command,
            user=user,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            logs=_paths(log, error_log),
        )
        limit = None if timeout_seconds is None else timeout_seconds + KILL_SECONDS
        try:
            with anyio.fail_after(limit):
                return await process.wait()
        except TimeoutError:
            raise SandboxLost(
                f"sandbox {self.id}: a command went on {KILL_SECONDS:g} s after its time"
            ) from None
        except BaseException:
            # Whoever cancels must find nothing running afterwards.
            with anyio.move_on_after(KILL_SECONDS, shield=True):
                with contextlib.suppress(SandboxLost, UnsupportedByProvider):
                    await process.kill()
            raise
        finally:
            process.close()

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        user: User | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> Process:
        process = self._launch(
            command,
            user=user,
            cwd=cwd,
            env=env,
            logs=_paths(log),
            announce=True,
        )
        await self._begun(process)
        return process

    async def spawn_piped(
        self,
        command: str | Sequence[str],
        *,
        user: User | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> PipedProcess:
        with contextlib.ExitStack() as on_failure:
            pipes = Pipes.open()
            on_failure.callback(pipes.close)
            with pipes.of_command() as descriptors:
                process = self._launch(
                    command,
                    user=user,
                    cwd=cwd,
                    env=env,
                    logs=_paths(log),
                    announce=True,
                    stdio=descriptors,
                )
            await self._begun(process)
            on_failure.pop_all()
        return LocalPipedProcess(process, pipes)

    async def _begun(self, process: LocalProcess) -> None:
        try:
            await process.started()
        except BaseException:
            process.close()
            raise
        self._spawned.append(process)

    def _launch(
        self,
        command: str | Sequence[str],
        *,
        user: User | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
        logs: Sequence[Path],
        stdin: bytes | None = None,
        timeout_seconds: float | None = None,
        announce: bool = False,
        stdio: Sequence[int] = (),
    ) -> LocalProcess:
        who = self.default_user if user is None else user
        refuse_user(who, one_uid=self._facts.one_uid)
        is_text = isinstance(command, str)
        message = {
            "op": "exec",
            "argv": ["/bin/sh", "-c", command] if is_text else list(command),
            "env": {**self._facts.env, **(env or {})},
            "cwd": cwd or self.workdir,
            "user": who,
            "timeout": timeout_seconds,
            "announce": announce,
            "piped": bool(stdio),
        }
        with contextlib.ExitStack() as stack:
            descriptors = [*stdio] or [stack.enter_context(_stdin(stdin)).fileno()]
            for log in logs:
                log.parent.mkdir(parents=True, exist_ok=True)
                descriptors.append(stack.enter_context(log.open("ab")).fileno())
            return LocalProcess(self._broker, self._request(message, descriptors))

    def _request(
        self, message: Mapping[str, object], descriptors: Sequence[int] = ()
    ) -> socket.socket:
        if self._life.is_over:
            raise SandboxLost(f"sandbox {self.id} was stopped")
        return self._broker.request({**message, "place": self.id}, descriptors)

    async def _ask(
        self, message: Mapping[str, object], descriptors: Sequence[int]
    ) -> wire.Message:
        channel = self._request(message, descriptors)
        try:
            return await self._broker.reply(channel)
        finally:
            channel.close()

    async def upload(
        self, uploads: Sequence[Upload], *, empty: Sequence[str] = ()
    ) -> None:
        archive = await anyio.to_thread.run_sync(transfer.pack, list(uploads))
        folders = [
            upload.target
            for upload in uploads
            if isinstance(upload.source, Path) and upload.source.is_dir()
        ]
        with archive:
            await self.put(archive, folders=folders, empty=empty)

    async def put(
        self,
        archive: IO[bytes],
        *,
        folders: Sequence[str] = (),
        empty: Sequence[str] = (),
    ) -> None:
        """Empty folders, make ``folders``, unpack a tar of our own over ``/``.

        Owners and modes are its members'. Raises as :meth:`upload`.
        """
        message = {
            "op": "put",
            "folders": list(folders),
            "empty": [
                (path, 0o777 if path in OPEN_FOLDERS else 0o755) for path in empty
            ],
        }
        reply = await self._ask(message, [archive.fileno()])
        if "error" in reply:
            raise TransferFailed(
                f"cannot copy into sandbox {self.id}: {reply['error']}",
                blocked=reply["blocked"],
            )

    async def download(
        self, downloads: Sequence[Download], *, limits: TransferLimits | None = None
    ) -> list[Downloaded]:
        caps = limits or TransferLimits()
        results: list[Downloaded] = []
        for start in range(0, len(downloads), wire.MAX_DESCRIPTORS):
            batch = downloads[start : start + wire.MAX_DESCRIPTORS]
            results += await self._download(batch, caps)
        return results

    async def _download(
        self, downloads: Sequence[Download], limits: TransferLimits
    ) -> list[Downloaded]:
        with contextlib.ExitStack() as stack:
            archives = [
                stack.enter_context(tempfile.TemporaryFile()) for _ in downloads
            ]
            message = {
                "op": "get",
                "paths": [
                    {"path": item.source, "exclude": item.exclude} for item in downloads
                ],
                "max_bytes": limits.max_bytes,
                "max_files": limits.max_files,
            }
            reply = await self._ask(message, [archive.fileno() for archive in archives])
            return await anyio.to_thread.run_sync(
                _unpack_all, downloads, archives, reply["results"], limits
            )

    async def read_bytes(
        self, path: str, *, max_bytes: int = MAX_CAPTURED_BYTES
    ) -> bytes | None:
        memory = os.memfd_create("content", os.MFD_CLOEXEC)
        with os.fdopen(memory, "rb") as content:
            message = {"op": "read", "path": path, "max_bytes": max_bytes}
            reply = await self._ask(message, [memory])
            if "error" in reply:
                return None
            content.seek(0)
            return content.read()

    async def address(self) -> str:
        return self._loopback("cannot be reached from outside")

    async def host_address(self) -> str:
        return self._loopback("cannot reach this host")

    def _loopback(self, otherwise: str) -> str:
        if self._facts.own_network:
            raise UnsupportedByProvider(
                f"network_mode = 'no-network': local sandbox {self.id} {otherwise}"
            )
        return "127.0.0.1"

    async def start_command(self) -> tuple[str, ...]:
        return self._facts.start_command

    async def initial_tools(self) -> frozenset[str]:
        return self._facts.tools

    async def stop(self) -> None:
        with anyio.CancelScope(shield=True):
            async with self._life.lock:
                if self._life.is_over:
                    return
                self._life.is_over = True
                with contextlib.suppress(OSError):
                    wire.send(self._life.channel, {"op": "stop"})
                while (message := await receive(self._life.channel)) is not None:
                    if "ended" in message:
                        break
                self._life.channel.close()
                for process in self._spawned:
                    process.close()

    @property
    def is_stopped(self) -> bool:
        """True once :meth:`stop` was called."""
        return self._life.is_over

    def how_to_enter(self) -> str:
        return self._facts.enter


def _paths(*logs: Path | None) -> list[Path]:
    return [log for log in logs if log is not None]


def _stdin(content: bytes | None) -> IO[bytes]:
    if content is None:
        return Path(os.devnull).open("rb")
    file = os.fdopen(os.memfd_create("stdin", os.MFD_CLOEXEC), "w+b")
    file.write(content)
    file.seek(0)
    return file


def _unpack_all(
    downloads: Sequence[Download],
    archives: Sequence[IO[bytes]],
    replies: Sequence[wire.Message],
    limits: TransferLimits,
) -> list[Downloaded]:
    results = []
    for item, archive, reply in zip(downloads, archives, replies, strict=True):
        if "error" in reply:
            results.append(Downloaded(item.source, "failed", reason=reply["error"]))
            continue
        archive.seek(0)
        results.append(
            transfer.unpack(
                archive, item.source, item.target, exclude=item.exclude, limits=limits
            )
        )
    return results
