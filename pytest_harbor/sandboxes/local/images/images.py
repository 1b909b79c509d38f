"""Images of local sandboxes: found by their hash, else built layer by layer.

A layer is what the instructions of a Dockerfile wrote, up to and with the next ``RUN``, kept
as the upper folders of a sandbox's overlays. Its key is the hash of all that decided over it, so
an unchanged beginning of a Dockerfile is never built again, by whichever process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from pytest_harbor.errors import (
    BuildFailed,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import Tell
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.install import Installs
from pytest_harbor.sandboxes.local.cache import Cache, cache_home
from pytest_harbor.sandboxes.local.images import rootfs
from pytest_harbor.sandboxes.local.images.build import (
    Build,
    Workshop,
    dockerfile_name,
    layers_of,
)
from pytest_harbor.sandboxes.local.images.context import (
    Context,
    refuse_link_out,
)
from pytest_harbor.sandboxes.local.images.mapping import HOST, ImageMap
from pytest_harbor.sandboxes.local.images.recipe import (
    Copy,
    Recipe,
    Run,
    read,
    this_platform,
)
from pytest_harbor.sandboxes.local.installs import this_machine
from pytest_harbor.sandboxes.local.refusals import refuse_user
from pytest_harbor.sandboxes.local.userland import SYSTEM_PATH


@dataclass(frozen=True)
class Image:
    """What a sandbox is started from, and what it says of itself."""

    base: Path | None
    """A root file system; ``None``: the host's userland."""
    layers: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str | None = None
    start_command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class LocalImages:
    """The images of one provider. ``folder`` is where they are kept."""

    def __init__(
        self, pairs: Sequence[tuple[str, str]], folder: Path | None = None
    ) -> None:
        self._map = ImageMap(pairs)
        once = Installs(BuildFailed, ("building", "builds"))
        self._cache = Cache(
            lambda: folder or cache_home() / "images",
            once,
            "built images",
            is_private=True,
        )

    def check(self, spec: EnvironmentSpec) -> None:
        """Refuse an image or Dockerfile that cannot be had here.

        Raises:
            UnsupportedByProvider: names the image, or the line of the Dockerfile.
        """
        if spec.build_context is not None:
            self._map.refuse_if_empty(dockerfile_name(spec))
        if spec.platform not in (None, this_platform()):
            raise UnsupportedByProvider(
                f"platform = {spec.platform!r}: the local sandbox builds for this "
                f"machine alone ({this_platform()}); use --harbor-sandbox docker"
            )
        recipe = self._recipe(spec, SYSTEM_PATH)
        target = self._target(spec, recipe)
        if spec.install is not None and target != HOST:
            raise UnsupportedByProvider(
                f"agent {spec.install.name} is installed for this machine's userland; it "
                f"cannot run in {target}; use --harbor-sandbox docker"
            )
        if recipe is None:
            return
        one_uid = os.geteuid() != 0
        for step in recipe.steps:
            where = f"{dockerfile_name(spec)}, line {step.line}: {step.text}"
            if isinstance(step, Run):
                _refuse_user(step.user, where, one_uid=one_uid)
            elif isinstance(step, Copy) and step.chown is not None and one_uid:
                for name in step.chown.split(":"):
                    _refuse_user(name or None, where, one_uid=True)
        _refuse_user(recipe.user, f"{dockerfile_name(spec)}: USER", one_uid=one_uid)

    def _recipe(self, spec: EnvironmentSpec, path: str) -> Recipe | None:
        if spec.build_context is None:
            return None
        file = spec.build_context / "Dockerfile"
        refuse_link_out(spec.build_context, file.name)
        try:
            text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
        except OSError as error:
            raise UnsupportedByProvider(f"{file}: {error.strerror}") from error
        name = dockerfile_name(spec)
        first = read(text, name, SYSTEM_PATH)
        # A root file system has the usual PATH; the host's may lead to an interpreter.
        is_host = self._map.find(first.base) == HOST
        return read(text, name, path) if is_host and path != SYSTEM_PATH else first

    def _target(self, spec: EnvironmentSpec, recipe: Recipe | None) -> str:
        if recipe is None:
            assert spec.image is not None
            return self._map.require(spec.image, f"docker_image = {spec.image!r}")
        where = f"{dockerfile_name(spec)}, line {recipe.base_line}: FROM {recipe.base}"
        return self._map.require(recipe.base, where)

    async def ready(
        self, spec: EnvironmentSpec, workshop: Workshop, tell: Tell | None
    ) -> Image:
        """The image of a spec, built if it is not there.

        Raises:
            UnsupportedByProvider: as :meth:`check`.
            BuildFailed: an instruction failed; its line, and the end of its output.
            SandboxStartFailed: the time is over, or infrastructure failed.
        """
        recipe = await anyio.to_thread.run_sync(self._recipe, spec, workshop.path)
        target = self._target(spec, recipe)
        base: Path | None = None
        if target == HOST:
            origin = "\n".join((this_machine(), workshop.path, *workshop.parts))
        else:
            origin = await anyio.to_thread.run_sync(rootfs.fingerprint, Path(target))
            base = await self._base(Path(target), origin, tell)
        if recipe is None:
            env = {} if base is None else {"PATH": SYSTEM_PATH}
            return Image(base, env=env)
        context = Context(spec.build_context or Path(), dockerfile_name(spec))
        keys = await anyio.to_thread.run_sync(layers_of, recipe, context, origin)
        build = Build(spec, workshop, context, base, self._cache, tell)
        layers = await build.layers(keys)
        path = workshop.path if base is None else SYSTEM_PATH
        return Image(
            base,
            layers,
            {"PATH": path, **recipe.env},
            recipe.workdir,
            recipe.user,
            recipe.start_command,
            recipe.notes,
        )

    async def _base(self, target: Path, origin: str, tell: Tell | None) -> Path:
        if await anyio.Path(target).is_dir():
            return target

        async def make(files: Path) -> None:
            await anyio.to_thread.run_sync(rootfs.unpack, target, files)

        key = f"rootfs-{origin[:24]}"
        return await self._cache.ready(
            key, make, what=str(target), tell=tell, force=False
        )

    def sweep(self) -> int:
        """Remove what dead owners left half built, and what was replaced a day ago."""
        return self._cache.sweep()


def _refuse_user(user: str | None, where: str, *, one_uid: bool) -> None:
    try:
        refuse_user(user, one_uid=one_uid)
    except UnsupportedByProvider as error:
        raise UnsupportedByProvider(f"{where}: {error}") from None
