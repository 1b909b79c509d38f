"""Images: found, pulled or built once, and remembered for the session."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import docker

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.api import Tell
from pytest_harbor.sandboxes.docker import build
from pytest_harbor.sandboxes.docker.build import Builder
from pytest_harbor.sandboxes.docker.client import NOT_FOUND, DaemonError, Engine
from pytest_harbor.sandboxes.docker.context import (
    REPOSITORY,
    BuildSource,
    image_tag,
)
from pytest_harbor.sandboxes.docker.pull import pull
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.machine import alone, shared_folder


@dataclass(frozen=True)
class Image:
    """What its configuration says about an image."""

    name: str
    user: str
    """Empty for root."""
    workdir: str
    command: tuple[str, ...] = ()
    """What it runs by itself, entrypoint first."""
    entrypoint: tuple[str, ...] = ()


class Images:
    """The images of one session.

    ``run`` names the run of all its workers: ``--harbor-force-build`` builds once in it.
    """

    def __init__(self, engine: Engine, run: str) -> None:
        self._engine = engine
        self._run = run
        self._known: dict[str, Image] = {}
        self._tags: dict[BuildSource, str] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._builder: Builder | None = None

    async def ready(
        self,
        spec: EnvironmentSpec,
        name: str,
        tell: Tell | None = None,
        *,
        source: BuildSource | None = None,
    ) -> Image:
        """The image of ``spec``, pulled or built if it is not there.

        ``name`` becomes part of the tag of what is built. ``source`` says more of a build
        than ``spec`` does, and is meant instead of it.

        Raises:
            SandboxStartFailed: it cannot be had within ``start_timeout_seconds``.
            DaemonError: the daemon is gone.
        """
        said = ""

        def hear(line: str) -> None:
            nonlocal said
            said = line
            if tell is not None:
                tell(line)

        if source is None and spec.image is None and spec.build_context is not None:
            source = BuildSource(spec.build_context, platform=spec.platform)
        try:
            with anyio.fail_after(spec.start_timeout_seconds):
                if source is not None:
                    return await self._built(spec, source, name, hear)
                if spec.image is not None:
                    return await self._pulled(spec.image, hear)
        except TimeoutError:
            what = f"the image of {source.folder}" if source else f"image {spec.image}"
            raise SandboxStartFailed(
                f"{what} was not ready within {spec.start_timeout_seconds:g} s "
                "(environment.build_timeout_sec in task.toml)"
                f"{f'; it was still {said}' if said else ''}"
            ) from None
        raise SandboxStartFailed(
            "docker needs an image: set environment.docker_image in task.toml, or add "
            "environment/Dockerfile",
            is_final=True,
        )

    async def _pulled(self, name: str, tell: Tell | None) -> Image:
        async with self._lock(name):
            if known := await self._find(name):
                return known
            async with _machine_wide_lock(f"pull {name}", tell):
                if known := await self._find(name):
                    return known
                await pull(self._engine, name, tell)
            return await self._found(name)

    async def _built(
        self, spec: EnvironmentSpec, source: BuildSource, name: str, tell: Tell | None
    ) -> Image:
        tag = await self._tag(source, name)
        content = tag.rpartition(":")[2]
        waited_since = time.time()
        async with self._lock(content):
            if known := self._known.get(tag):
                return known
            if not spec.force_build and (known := await self._find(tag)):
                return known
            # Tasks often share an environment: it is built for one of them.
            async with _machine_wide_lock(content, tell):
                record = _BuildRecord(content, tag)
                is_fresh = not spec.force_build or record.forced_by(self._run)
                if is_fresh and await self._engine.call(partial(_adopt, tag)):
                    return await self._found(tag)
                record.raise_failure(since=waited_since)
                recipe = build.Recipe(source, tag, use_cache=not spec.force_build)
                if self._builder is None:
                    self._builder = await build.find_builder()
                try:
                    await build.build(self._engine, self._builder, recipe, tell)
                except SandboxStartFailed as error:
                    record.failed(error)
                    raise
                record.built(forced_by=self._run if spec.force_build else "")
            return await self._found(tag)

    async def _tag(self, source: BuildSource, name: str) -> str:
        if source not in self._tags:
            try:
                self._tags[source] = await anyio.to_thread.run_sync(
                    image_tag, source, name
                )
            except (OSError, ValueError) as error:
                raise SandboxStartFailed(
                    f"cannot read the build context {source.folder}: {error}",
                    is_final=isinstance(error, ValueError),
                ) from error
        return self._tags[source]

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
            name,
            config.get("User") or "",
            config.get("WorkingDir") or "",
            (*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
            tuple(config.get("Entrypoint") or ()),
        )
        return self._known[name]


def _inspect(name: str, client: docker.APIClient) -> dict[str, Any]:
    return dict(client.inspect_image(name))  # type: ignore[no-untyped-call]


def _adopt(tag: str, client: docker.APIClient) -> bool:
    """Give ``tag`` to the newest image of the same content; ``False``: there is none."""
    repository, _, content = tag.rpartition(":")
    same = client.images(filters={"reference": f"{REPOSITORY}/*:{content}"})
    if not same:
        return False
    newest = max(same, key=lambda facts: facts["Created"])
    client.tag(newest["Id"], repository, content)
    return True


class _BuildRecord:
    """What is known about builds on this machine, kept beside their locks.

    Images of the same content are shared; failures are not, for they name files of a task.
    """

    def __init__(self, content: str, tag: str) -> None:
        self._built = Path(f"{_stem(content)}.built")
        self._failed = Path(f"{_stem(tag)}.failed")

    def forced_by(self, run: str) -> bool:
        """True when this very run built it without a cache."""
        try:
            return self._built.read_text() == run
        except OSError:
            return False

    def raise_failure(self, *, since: float) -> None:
        """Raise what a build ended with that those who waited need not repeat."""
        try:
            if self._failed.stat().st_mtime < since:
                return
            failure = json.loads(self._failed.read_text())
            error = SandboxStartFailed(failure["text"], is_final=failure["is_final"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        raise error

    def built(self, *, forced_by: str) -> None:
        self._built.write_text(forced_by)
        self._failed.unlink(missing_ok=True)

    def failed(self, error: SandboxStartFailed) -> None:
        failure = {"text": str(error), "is_final": error.is_final}
        self._failed.write_text(json.dumps(failure))


def _machine_wide_lock(
    name: str, tell: Tell | None
) -> contextlib.AbstractAsyncContextManager[None]:
    """One build of a content, or pull of a name, at a time, whichever process wants it."""
    return alone(Path(f"{_stem(name)}.lock"), tell, does="makes the same image")


def _stem(name: str) -> str:
    """The path of what is kept about ``name`` on this machine, without its suffix."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:80]
    return str(shared_folder("images") / f"{plain}-{digest}")
