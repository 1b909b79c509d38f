"""A provider without a machine: files in memory, commands answered by a function.

For what a real sandbox cannot be brought to do on demand: die, lack tools, refuse.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.lowlevel

from pytest_harbor.sandboxes.api import (
    VERIFIER_TOOLS,
    Capabilities,
    ExecResult,
    Process,
    Provider,
    Sandbox,
    Swept,
    Tell,
)
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Network, User
from pytest_harbor.sandboxes.transfer_types import (
    NOT_THERE,
    Download,
    Downloaded,
    TransferLimits,
    Upload,
)

OK = ExecResult(0, "", "")
LOG_FOLDERS = ("/logs", "/logs/agent", "/logs/artifacts", "/logs/verifier")


@dataclass
class Command:
    """One command that a sandbox was asked to run."""

    sandbox: ScriptedSandbox
    argv: str | Sequence[str]
    user: User | None
    env: Mapping[str, str]
    timeout_seconds: float | None
    cwd: str | None

    @property
    def text(self) -> str:
        return self.argv if isinstance(self.argv, str) else " ".join(self.argv)


Answer = Callable[[Command], Any]


def passing(command: Command) -> ExecResult:
    """Every command succeeds; the verifier writes 1."""
    if "/tests/test.sh" in command.text:
        command.sandbox.files["/logs/verifier/reward.txt"] = b"1\n"
    return OK


class ScriptedSandbox(Sandbox):
    provider = "scripted"
    workdir = "/app"

    def __init__(self, owner: ScriptedProvider, name: str) -> None:
        self.id = name
        self.default_user = owner.default_user
        self.unenforced = owner.unenforced
        self.owner = owner
        self.files: dict[str, bytes] = dict(owner.initial_files)
        self.is_up = True
        self.sidecars: dict[str, ScriptedSandbox] = {}

    @property
    def services(self) -> Mapping[str, Sandbox]:
        return self.sidecars

    async def halt(self) -> None:
        self.owner.calls.append(("halt", self.id))

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
        asked = Command(
            self,
            command,
            self.default_user if user is None else user,
            dict(env or {}),
            timeout_seconds,
            cwd,
        )
        self.owner.calls.append(("exec", asked.text))
        self.owner.commands.append(asked)
        if list(command[:2]) == ["rm", "-rf"] and self.owner.can_remove:
            self.files.pop(command[-1], None)
        result = self.owner.answer(asked)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, Exception):
            raise result
        for path, text in _logged(result, log, error_log):
            with path.open("ab") as file:
                file.write(text.encode())
        return result

    async def spawn(self, command: str | Sequence[str], **options: Any) -> Process:
        raise NotImplementedError

    async def upload(
        self, uploads: Sequence[Upload], *, empty: Sequence[str] = ()
    ) -> None:
        targets = [upload.target for upload in uploads]
        self.owner.calls.append(("upload", f"{targets} empty={list(empty)}"))
        self._maybe_fail("upload")
        for folder in empty:
            for path in [p for p in self.files if p.startswith(f"{folder}/")]:
                del self.files[path]
        for upload in uploads:
            self.files.update(_content(upload))

    async def download(
        self, downloads: Sequence[Download], *, limits: TransferLimits | None = None
    ) -> list[Downloaded]:
        sources = [download.source for download in downloads]
        self.owner.calls.append(("download", str(sources)))
        self.owner.downloads.extend(downloads)
        self._maybe_fail("download")
        return [self._download(item) for item in downloads]

    def _download(self, item: Download) -> Downloaded:
        if item.source in self.owner.too_big:
            return Downloaded(item.source, "failed", reason="more than 9 bytes")
        if item.source in self.files:
            item.target.parent.mkdir(parents=True, exist_ok=True)
            item.target.write_bytes(self.files[item.source])
            return Downloaded(item.source, "ok", "file")
        found = [p for p in self.files if p.startswith(f"{item.source}/")]
        for path in found:
            target = item.target / path.removeprefix(f"{item.source}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.files[path])
        if found:
            dropped = self.owner.dropped.get(item.source, ())
            return Downloaded(item.source, "ok", "directory", dropped=dropped)
        if item.source in LOG_FOLDERS:
            return Downloaded(item.source, "empty", "directory")
        return Downloaded(item.source, "failed", reason=NOT_THERE)

    def _maybe_fail(self, what: str) -> None:
        if self.owner.failures.get(what):
            raise self.owner.failures[what].pop(0)

    async def set_network(self, network: Network) -> None:
        hosts = f" {','.join(network.allowed_hosts)}" if network.allowed_hosts else ""
        self.owner.calls.append(("set_network", f"{network.mode}{hosts}"))

    async def network_refusals(self) -> Sequence[str]:
        self._maybe_fail("network_refusals")
        return self.owner.refused.pop(0) if self.owner.refused else ()

    async def initial_tools(self) -> frozenset[str]:
        return self.owner.tools

    async def stop(self) -> None:
        self.owner.calls.append(("stop", self.id))
        await anyio.lowlevel.checkpoint()  # where a cancellation would strike
        self._maybe_fail("stop")
        self.is_up = False

    async def keep(self) -> None:
        self._maybe_fail("keep")

    def how_to_enter(self) -> str:
        return f"enter {self.id}"


def _logged(
    result: ExecResult, log: Path | None, error_log: Path | None
) -> Iterator[tuple[Path, str]]:
    if log is None or not result.output:
        return
    if error_log is None:
        yield log, result.output
    else:
        yield from ((log, result.stdout), (error_log, result.stderr))


def _content(upload: Upload) -> Mapping[str, bytes]:
    if isinstance(upload.source, bytes):
        return {upload.target: upload.source}
    if upload.source.is_file():
        return {upload.target: upload.source.read_bytes()}
    paths = [path for path in upload.source.rglob("*") if path.is_file()]
    names = {path: str(path.relative_to(upload.source)) for path in paths}
    return {
        f"{upload.target}/{name}": path.read_bytes()
        for path, name in names.items()
        if name not in upload.exclude
    }


@dataclass
class ScriptedProvider(Provider):
    name = "scripted"

    answer: Answer = passing
    tools: frozenset[str] = frozenset(VERIFIER_TOOLS)
    failures: dict[str, list[Exception]] = field(default_factory=dict)
    """Exceptions to raise, in order, per method: prepare, start, upload, download, stop."""
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(True, isolation="none at all")
    )
    refusal: Exception | None = None
    default_user: User | None = None
    too_big: frozenset[str] = frozenset()
    dropped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Sources whose download passes a cap."""
    downloads: list[Download] = field(default_factory=list)
    can_remove: bool = True
    """False: an agent put an ``rm`` of its own in the way."""
    unenforced: tuple[str, ...] = ()
    refused: list[tuple[str, ...]] = field(default_factory=list)
    """What ``network_refusals`` tells, in order."""
    initial_files: Mapping[str, bytes] = field(default_factory=dict)
    services: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """Files of the sidecars that every sandbox has."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    specs: list[EnvironmentSpec] = field(default_factory=list)
    started: list[ScriptedSandbox] = field(default_factory=list)
    checked_users: list[Sequence[User | None]] = field(default_factory=list)

    async def probe(self) -> Capabilities:
        return self.capabilities

    def check(self, spec: EnvironmentSpec, users: Sequence[User | None]) -> None:
        self.checked_users.append(users)
        if self.refusal is not None:
            raise self.refusal

    async def prepare(
        self,
        spec: EnvironmentSpec,
        *,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None = None,
    ) -> None:
        self.calls.append(("prepare", name))
        if self.failures.get("prepare"):
            raise self.failures["prepare"].pop(0)

    async def start(
        self,
        spec: EnvironmentSpec,
        *,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None = None,
    ) -> Sandbox:
        self.calls.append(("start", name))
        self.specs.append(spec)
        if self.failures.get("start"):
            raise self.failures["start"].pop(0)
        sandbox = ScriptedSandbox(self, name)
        for service, files in self.services.items():
            sandbox.sidecars[service] = ScriptedSandbox(self, service)
            sandbox.sidecars[service].files = dict(files)
        self.started.append(sandbox)
        return sandbox

    async def sweep(self) -> Swept:
        return Swept()

    async def aclose(self) -> None:
        pass

    @property
    def left_up(self) -> list[str]:
        return [sandbox.id for sandbox in self.started if sandbox.is_up]
