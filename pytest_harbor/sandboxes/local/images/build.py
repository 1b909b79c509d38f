"""The build of one Dockerfile: a sandbox per layer, whose writes are kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Final, TypeAlias

import anyio
import anyio.to_thread

from pytest_harbor.errors import (
    BuildFailed,
    SandboxStartFailed,
    TransferFailed,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import Tell
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.broker import joined
from pytest_harbor.sandboxes.local.cache import Cache
from pytest_harbor.sandboxes.local.images.context import Context, Owner
from pytest_harbor.sandboxes.local.images.recipe import (
    Copy,
    MakeFolder,
    Recipe,
    Run,
    Step,
)
from pytest_harbor.sandboxes.local.sandbox import LocalSandbox
from pytest_harbor.sandboxes.local.stack import Stack
from pytest_harbor.sandboxes.outages import tell_of_no_network

SHOWN_LINES: Final = 30
"""Last lines of a command's output that an error shows."""
_FORMAT: Final = "1"
"""Changes when layers of an older version cannot be used any more."""
_PACKAGES: Final = ("/var/lib/dpkg", "/var/lib/apt")
_NO_PACKAGES: Final = (
    "hint: apt finds no packages in this machine's own userland (`host` in "
    "harbor_local_images), whose /var is not in the sandbox; map the image to a root file "
    "system, or use --harbor-sandbox docker"
)
_MAX_LOG_BYTES: Final = 64 * 1024
_UTF8: Final = {"encoding": "utf-8", "errors": "surrogateescape"}

Start: TypeAlias = Callable[[Stack, str], Awaitable[LocalSandbox]]
"""Starts a sandbox with public network on a stack, under a name."""


@dataclass(frozen=True)
class Workshop:
    """What a provider has of its own, and how it starts a sandbox."""

    skeleton: Path
    path: str
    """The PATH of the host's userland."""
    parts: tuple[str, ...]
    """Where the host's userland is laid over."""
    start: Start


@dataclass(frozen=True)
class Layer:
    """Steps that are kept together, and the hash of all that decides over them."""

    key: str
    steps: tuple[Step, ...]


def layers_of(recipe: Recipe, context: Context, origin: str) -> list[Layer]:
    """The layers of a recipe with their keys, each a hash of all that came before.

    Raises:
        UnsupportedByProvider: a file that is copied is not there.
    """
    who = "root" if os.geteuid() == 0 else str(os.geteuid())
    digest = hashlib.sha256(f"{_FORMAT}\0{who}\0{origin}".encode(**_UTF8))
    layers = []
    for steps in recipe.layers:
        for step in steps:
            facts = {**asdict(step), "line": 0, "kind": type(step).__name__}
            digest.update(f"\0{json.dumps(facts, sort_keys=True)}".encode())
            if isinstance(step, Copy):
                context.digest(step, digest)
        layers.append(Layer(digest.hexdigest()[:32], steps))
    return layers


@dataclass(frozen=True)
class Build:
    """The build of one Dockerfile."""

    spec: EnvironmentSpec
    workshop: Workshop
    context: Context
    base: Path | None
    cache: Cache
    tell: Tell | None

    async def layers(self, wanted: Sequence[Layer]) -> tuple[Path, ...]:
        """The folders of all layers, those that are missing built one upon the other."""
        paths = tuple(self.cache.path(layer.key) for layer in wanted)
        if not self.spec.force_build and all(path.is_dir() for path in paths):
            return paths
        if self._stack(paths).is_too_high:
            raise UnsupportedByProvider(
                f"{dockerfile_name(self.spec)}: {len(paths)} RUN instructions are too many for "
                "the local sandbox; put some together, or use --harbor-sandbox docker"
            )
        seconds = self.spec.start_timeout_seconds
        at = _At()
        try:
            with anyio.fail_after(seconds):
                for number, layer in enumerate(wanted):
                    at.step = layer.steps[0]
                    await self.cache.ready(
                        layer.key,
                        partial(self._make, layer, paths[:number], at),
                        what=f"{self.spec.build_context}: {layer.steps[-1].text}",
                        tell=self.tell,
                        force=self.spec.force_build,
                    )
        except TimeoutError as error:
            raise SandboxStartFailed(
                f"{dockerfile_name(self.spec)}{at}: the build took longer than its {seconds:g} s "
                "(build_timeout_sec)",
                is_final=True,
            ) from error
        return paths

    def _stack(self, below: Sequence[Path]) -> Stack:
        return Stack(self.workshop.skeleton, self.base, tuple(below))

    async def _make(
        self, layer: Layer, below: Sequence[Path], at: _At, files: Path
    ) -> None:
        """Fill ``files`` with what the steps of a layer write."""
        work = files.with_name("work")
        parts = self.workshop.parts if self.base is None else ("%",)
        await anyio.to_thread.run_sync(_make_parts, files, work, parts)
        stack = replace(self._stack(below), upper=files, work=work)
        sandbox = await self.workshop.start(stack, f"build-{layer.key[:12]}")
        try:
            for step in layer.steps:
                at.step = step
                await self._do(sandbox, step, files.with_name("log"))
        finally:
            await sandbox.stop()
        await anyio.to_thread.run_sync(_drop_empty, files)

    async def _do(self, sandbox: LocalSandbox, step: Step, log: Path) -> None:
        try:
            if isinstance(step, MakeFolder):
                with empty_tar() as nothing:
                    await sandbox.put(nothing, folders=[step.path])
            elif isinstance(step, Copy):
                await self._copy(sandbox, step)
            else:
                await self._run(sandbox, step, log)
        except TransferFailed as error:
            raise self._failed(step, str(error)) from error

    def _failed(self, step: Step, why: str) -> BuildFailed:
        return BuildFailed(
            f"{dockerfile_name(self.spec)}, line {step.line}: {step.text}: {why}"
        )

    async def _copy(self, sandbox: LocalSandbox, step: Copy) -> None:
        is_folder = step.target.endswith("/") or await self._is_folder(
            sandbox, step.target
        )
        owner = await self._owner(sandbox, step)
        pack = partial(_pack, self.context, step, is_folder=is_folder, owner=owner)
        with await anyio.to_thread.run_sync(pack) as archive:
            await sandbox.put(archive)

    async def _is_folder(self, sandbox: LocalSandbox, path: str) -> bool:
        command = ["/bin/sh", "-c", 'test -d "$1"', "sh", path]
        return (await sandbox.exec(command, user=0, cwd="/")).ok

    async def _owner(self, sandbox: LocalSandbox, step: Copy) -> Owner:
        if step.chown is None:
            return Owner()
        user, _, group = step.chown.partition(":")
        rows = await _rows(sandbox, joined.PASSWD)
        uid = _number(user, rows, step, self._failed)
        if group:
            groups = await _rows(sandbox, joined.GROUP)
            return Owner(uid, _number(group, groups, step, self._failed))
        of_user = [row for row in rows if row[0] == user and len(row) > 3]
        gid = joined.parse_id(of_user[0][3]) if of_user else uid
        return Owner(uid, gid or 0)

    async def _run(self, sandbox: LocalSandbox, step: Run, log: Path) -> None:
        await anyio.Path(log).unlink(missing_ok=True)
        try:
            done = await sandbox.exec(
                list(step.argv), user=step.user, cwd=step.workdir, env=step.env, log=log
            )
        except UnsupportedByProvider as error:  # no such user
            raise self._failed(step, str(error)) from error
        if done.ok:
            return
        lines = await anyio.to_thread.run_sync(_last_lines, log)
        failure = self._failed(step, f"ended with exit code {done.exit_code}")
        text = "\n".join([str(failure), *lines, *_hint(lines)])
        if tell_of_no_network(lines):
            raise SandboxStartFailed(text) from None
        raise BuildFailed(text)


@dataclass
class _At:
    """Which step a build is at."""

    step: Step | None = None

    def __str__(self) -> str:
        return "" if self.step is None else f", line {self.step.line}: {self.step.text}"


def _hint(lines: Sequence[str]) -> Sequence[str]:
    """What to do about a failure that the host's userland explains."""
    if any(folder in line for line in lines for folder in _PACKAGES):
        return (_NO_PACKAGES,)
    return ()


def dockerfile_name(spec: EnvironmentSpec) -> str:
    """What messages call the Dockerfile: ``environment/Dockerfile``."""
    folder = spec.build_context
    return f"{folder.name}/Dockerfile" if folder is not None else "docker_image"


def _make_parts(files: Path, work: Path, parts: Sequence[str]) -> None:
    work.mkdir()
    for part in parts:
        for folder in (files / part, work / part):
            folder.mkdir()
            folder.chmod(0o755)  # the upper's mode is that of the folder in the sandbox


def _drop_empty(files: Path) -> None:
    for part in files.iterdir():
        if not any(part.iterdir()):
            shutil.rmtree(part)


def _pack(context: Context, step: Copy, *, is_folder: bool, owner: Owner) -> IO[bytes]:
    stream = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
            members = context.pack(step, step.target, is_folder=is_folder, owner=owner)
            for info, content in members:
                tar.addfile(info, content)
    except OSError as error:
        stream.close()
        raise TransferFailed(f"cannot read the build context: {error}") from error
    except BaseException:
        stream.close()
        raise
    stream.seek(0)
    return stream


def empty_tar() -> IO[bytes]:
    """An archive of nothing, for a transfer that makes folders alone."""
    stream = tempfile.TemporaryFile()  # noqa: SIM115 - as above
    with tarfile.open(fileobj=stream, mode="w"):
        pass
    stream.seek(0)
    return stream


async def _rows(sandbox: LocalSandbox, path: str) -> list[list[str]]:
    text = await sandbox.read_text(path) or ""
    rows = [line.split(":") for line in text.splitlines()]
    return [row for row in rows if len(row) > 2]


def _number(
    name: str,
    rows: Sequence[Sequence[str]],
    step: Step,
    failed: Callable[[Step, str], BuildFailed],
) -> int:
    number = joined.parse_id(name)
    if number is None:
        found = [joined.parse_id(row[2]) for row in rows if row[0] == name]
        number = found[0] if found else None
    if number is None:
        raise failed(step, f"there is no {name!r} in the image")
    return number


def _last_lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MAX_LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-SHOWN_LINES:]
