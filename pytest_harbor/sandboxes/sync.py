"""The blocking face of a sandbox, for plain functions in a worker thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytest_harbor.sandboxes.api import MAX_CAPTURED_BYTES, ExecResult, Process, Sandbox
from pytest_harbor.sandboxes.environment import User
from pytest_harbor.sandboxes.transfer_types import (
    Download,
    Downloaded,
    TransferLimits,
    Upload,
)

Call = Callable[..., Any]
"""``call(async_function, *args)`` runs it in the event loop's thread and returns."""


class SyncProcess:
    """The blocking face of a :class:`~pytest_harbor.sandboxes.api.Process`."""

    def __init__(self, process: Process, call: Call) -> None:
        self._process = process
        self._call = call

    def wait(self) -> ExecResult:
        """Wait until the command ends. Raises SandboxLost."""
        result: ExecResult = self._call(self._process.wait)
        return result

    def kill(self) -> None:
        """Kill the command's whole process tree; returns when it is gone."""
        self._call(self._process.kill)


class SyncSandbox:
    """A :class:`~pytest_harbor.sandboxes.api.Sandbox` whose methods block.

    The methods, their results and their exceptions are those of ``Sandbox``. It must
    be used in another thread than the event loop's, as a plain ``def run`` of an
    agent is. ``call`` may refuse (raise) once the sandbox no longer belongs to the caller.
    """

    def __init__(self, sandbox: Sandbox, call: Call) -> None:
        self._sandbox = sandbox
        self._call = call

    @property
    def id(self) -> str:
        """Name a person can use to enter it."""
        return self._sandbox.id

    @property
    def provider(self) -> str:
        """The provider's name."""
        return self._sandbox.provider

    @property
    def workdir(self) -> str:
        """The working directory in the sandbox."""
        return self._sandbox.workdir

    @property
    def default_user(self) -> User | None:
        """The user of commands that name none."""
        return self._sandbox.default_user

    @property
    def services(self) -> Mapping[str, SyncSandbox]:
        """The other services of its Compose file by name."""
        return {
            name: SyncSandbox(service, self._call)
            for name, service in self._sandbox.services.items()
        }

    def exec(
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
        """Run a command to its end, as ``Sandbox.exec``."""
        result: ExecResult = self._run(
            self._sandbox.exec,
            command,
            user=user,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            log=log,
            error_log=error_log,
        )
        return result

    def spawn(
        self,
        command: str | Sequence[str],
        *,
        user: User | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> SyncProcess:
        """Start a command and return at once, as ``Sandbox.spawn``."""
        process = self._run(
            self._sandbox.spawn, command, user=user, cwd=cwd, env=env, log=log
        )
        return SyncProcess(process, self._call)

    def upload(self, uploads: Sequence[Upload], *, empty: Sequence[str] = ()) -> None:
        """Copy files in, as ``Sandbox.upload``."""
        self._run(self._sandbox.upload, uploads, empty=empty)

    def download(
        self, downloads: Sequence[Download], *, limits: TransferLimits | None = None
    ) -> list[Downloaded]:
        """Copy files out, as ``Sandbox.download``."""
        results: list[Downloaded] = self._run(
            self._sandbox.download, downloads, limits=limits
        )
        return results

    def read_bytes(
        self, path: str, *, max_bytes: int = MAX_CAPTURED_BYTES
    ) -> bytes | None:
        """The content of a file, as ``Sandbox.read_bytes``."""
        content: bytes | None = self._run(
            self._sandbox.read_bytes, path, max_bytes=max_bytes
        )
        return content

    def read_text(
        self, path: str, *, max_bytes: int = MAX_CAPTURED_BYTES
    ) -> str | None:
        """The text of a file, as ``Sandbox.read_text``."""
        text: str | None = self._run(self._sandbox.read_text, path, max_bytes=max_bytes)
        return text

    def stop(self) -> None:
        """End it and leave nothing, as ``Sandbox.stop``. May be called again."""
        self._run(self._sandbox.stop)

    def how_to_enter(self) -> str:
        """The command that opens a shell in it, and how to remove it."""
        return self._sandbox.how_to_enter()

    def _run(
        self, function: Callable[..., Awaitable[Any]], *args: object, **options: object
    ) -> Any:
        return self._call(partial(function, *args, **options))
