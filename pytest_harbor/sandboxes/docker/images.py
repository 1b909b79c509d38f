"""Images: found, pulled or built once, and remembered for the session."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import docker
from filelock import FileLock, Timeout

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.api import EnvironmentSpec
from pytest_harbor.sandboxes.docker import build, context
from pytest_harbor.sandboxes.docker.client import NOT_FOUND, DaemonError, Engine

_LOCK_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Image:
    """What its configuration says about an image."""

    name: str
    user: str
    """Empty for root."""
    workdir: str


class Images:
    """The images of one session."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, Image] = {}
        self._tags: dict[Path, str] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._session_began = time.time()

    async def ready(self, spec: EnvironmentSpec, name: str) -> Image:
        """The image of ``spec``, pulled or built if it is not there.

        ``name`` becomes part of the tag of what is built.

        Raises:
            SandboxStartFailed: it cannot be had within ``start_timeout_seconds``.
            DaemonError: the daemon is gone.
        """
        try:
            with anyio.fail_after(spec.start_timeout_seconds):
                if spec.image is not None:
                    return await self._pulled(spec.image)
                if spec.build_context is not None:
                    return await self._built(spec.build_context, name, spec.force_build)
        except TimeoutError:
            what = spec.image or f"what {spec.build_context} builds"
            raise SandboxStartFailed(
                f"image {what} was not ready within {spec.start_timeout_seconds:g} s "
                "(environment.build_timeout_sec in task.toml)"
            ) from None
        raise SandboxStartFailed(
            "docker needs an image: set environment.docker_image in task.toml, or add "
            "environment/Dockerfile"
        )

    async def _pulled(self, name: str) -> Image:
        async with self._lock(name):
            if known := await self._find(name):
                return known
            try:
                await build.pull(self._engine, name)
            except DaemonError as error:
                raise SandboxStartFailed(
                    f"image {name} is not here and cannot be pulled: {error.text}. "
                    f"Check the name in environment.docker_image; `docker pull {name}` "
                    "shows the same, `docker login` helps with a private registry."
                ) from error
            return await self._found(name)

    async def _built(self, folder: Path, name: str, force: bool) -> Image:
        tag = await self._tag(folder, name)
        waited_since = time.time()
        async with self._lock(tag):
            if known := self._known.get(tag):
                return known
            if not force and (known := await self._find(tag)):
                return known
            async with _machine_wide_lock(tag) as record:
                already = self._session_began if force else 0.0
                if record.built_at >= already and (known := await self._find(tag)):
                    return known
                if record.failed_at >= waited_since:
                    raise SandboxStartFailed(record.failure)
                try:
                    await build.build(self._engine, folder, tag, force=force)
                except SandboxStartFailed as error:
                    record.failed(str(error))
                    raise
                record.built()
            return await self._found(tag)

    async def _tag(self, folder: Path, name: str) -> str:
        if folder not in self._tags:
            try:
                self._tags[folder] = await anyio.to_thread.run_sync(
                    context.image_tag, folder, name
                )
            except OSError as error:
                raise SandboxStartFailed(
                    f"cannot read the build context {folder}: {error}"
                ) from error
        return self._tags[folder]

    def _lock(self, key: str) -> anyio.Lock:
        return self._locks.setdefault(key, anyio.Lock())

    async def _found(self, name: str) -> Image:
        image = await self._find(name)
        if image is None:
            raise SandboxStartFailed(f"image {name} is not there after it was made")
        return image

    async def _find(self, name: str) -> Image | None:
        if name in self._known:
            return self._known[name]
        try:
            facts = await self._engine.call(partial(_inspect, name))
        except DaemonError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        config = facts.get("Config") or {}
        self._known[name] = Image(
            name, config.get("User") or "", config.get("WorkingDir") or ""
        )
        return self._known[name]


def _inspect(name: str, client: docker.APIClient) -> dict[str, Any]:
    return dict(client.inspect_image(name))  # type: ignore[no-untyped-call]


class _BuildRecord:
    """What is known about builds of one tag on this machine, kept beside its lock."""

    def __init__(self, stem: Path) -> None:
        self._built = stem.with_suffix(".built")
        self._failed = stem.with_suffix(".failed")

    @property
    def built_at(self) -> float:
        return _modified(self._built)

    @property
    def failed_at(self) -> float:
        return _modified(self._failed)

    @property
    def failure(self) -> str:
        return self._failed.read_text()

    def built(self) -> None:
        self._built.touch()
        self._failed.unlink(missing_ok=True)

    def failed(self, text: str) -> None:
        self._failed.write_text(text)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return -1.0


def _lock_folder() -> Path:
    folder = Path(tempfile.gettempdir(), f"pytest-harbor-{os.getuid()}", "images")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.parent.chmod(0o700)  # fails when somebody else made it
    except OSError as error:
        raise SandboxStartFailed(
            f"cannot use {folder} for the locks of image builds: {error}"
        ) from error
    return folder


@contextlib.asynccontextmanager
async def _machine_wide_lock(tag: str) -> AsyncIterator[_BuildRecord]:
    """One build of a tag at a time, whichever process wants it."""
    stem = _lock_folder() / re.sub(r"[^a-z0-9]+", "-", tag)
    lock = FileLock(stem.with_suffix(".lock"), thread_local=False)
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except Timeout:
            await anyio.sleep(_LOCK_POLL_SECONDS)
    try:
        yield _BuildRecord(stem)
    finally:
        lock.release()
