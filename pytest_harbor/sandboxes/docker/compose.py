"""Compose tasks: one project per sandbox, brought up by Compose and run through the API.

A project is brought up with ``up --wait``, in which Compose knows best what waits for what.
It is removed by its label through the API and not with ``down``: that needs no file, works
after an interrupted start, is what a sweep does with a dead owner's projects as well, and
goes on in the background.
"""

from __future__ import annotations

import posixpath
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import anyio

from pytest_harbor.errors import (
    SandboxError,
    SandboxStartFailed,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import Tell
from pytest_harbor.sandboxes.docker import compose_checks as checks
from pytest_harbor.sandboxes.docker import compose_model, compose_project
from pytest_harbor.sandboxes.docker.client import DaemonError, Engine
from pytest_harbor.sandboxes.docker.compose_cli import (
    REMEDY,
    Compose,
    ComposeFailed,
    ComposeFile,
    Reading,
    daemon_env,
    find_program,
)
from pytest_harbor.sandboxes.docker.compose_sandbox import (
    ComposeSandbox,
    ServiceSandbox,
)
from pytest_harbor.sandboxes.docker.context import DOCKERFILE, BuildSource
from pytest_harbor.sandboxes.docker.create import PIDS_LIMIT, STORAGE, refused_limit
from pytest_harbor.sandboxes.docker.files import OPEN_FOLDERS
from pytest_harbor.sandboxes.docker.images import Image, Images
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.tasks.folder.model import MAIN_SERVICE

NO_COMPOSE: Final = f"Docker Compose is needed and was not found: {REMEDY}"

_SAID_BY_DAEMON = "Error response from daemon: "
_UNSET = re.compile(r'^The "(?P<name>[^"]+)" variable is not set')


def check(spec: EnvironmentSpec) -> None:
    """Refuse a Compose task where there is no Compose. Raises UnsupportedByProvider."""
    if find_program() is None:
        raise UnsupportedByProvider(f"{spec.compose_file}: {NO_COMPOSE}")


@dataclass(frozen=True)
class NewProject:
    """A project that is about to be brought up."""

    spec: EnvironmentSpec
    name: str
    task: str
    """The task's ID, for the tags of images that are built."""
    labels: Mapping[str, str]
    tell: Tell | None = None


class Projects:
    """The Compose projects of one session."""

    def __init__(
        self,
        engine: Engine,
        images: Images,
        *,
        no_new_privileges: bool,
        refused_limits: dict[str, str],
        remove: Callable[[str, bool], None],
    ) -> None:
        program = find_program()
        if program is None:
            raise UnsupportedByProvider(NO_COMPOSE)
        self._compose = Compose(program, daemon_env(engine.url))
        self._engine = engine
        self._images = images
        self._no_new_privileges = no_new_privileges
        self._refused_limits = refused_limits
        self._remove = remove
        self._readings: dict[object, Reading] = {}

    async def prepare(
        self, new: NewProject
    ) -> tuple[compose_model.Model, compose_model.ProjectPlan]:
        """Read and check the file, and get its images.

        Raises:
            UnsupportedByProvider: it asks for what a sandbox does not give.
            SandboxStartFailed: it cannot be read, or an image cannot be had.
            DaemonError: the daemon is gone.
        """
        reading = await self._reading(new.spec)
        model = compose_model.with_name(reading.model, compose_model.PROJECT, new.name)
        model, images = await self._get_images(model, new)
        main = images[MAIN_SERVICE]
        own = model["services"][MAIN_SERVICE].get("working_dir")
        return model, compose_model.ProjectPlan(
            name=new.name,
            spec=new.spec,
            images=images,
            workdir=posixpath.normpath(
                posixpath.join("/", main.workdir, own or "", new.spec.workdir or "")
            ),
            labels=new.labels,
            pids_limit=PIDS_LIMIT,
            no_new_privileges=self._no_new_privileges,
        )

    async def start(
        self,
        new: NewProject,
        model: compose_model.Model,
        plan: compose_model.ProjectPlan,
        forget: Callable[[str], object],
    ) -> ComposeSandbox:
        """Bring it up; when that fails or is cancelled, nothing of it stays.

        Raises:
            SandboxStartFailed: a service did not get well; names it.
            DaemonError: the daemon is gone.
        """
        if new.tell is not None:
            new.tell(f"starting services: {', '.join(model['services'])}")
        try:
            unenforced = await self._up(new, model, plan)
            listed = await self._engine.call(
                lambda client: compose_project.containers(client, new.name)
            )
        except BaseException:
            self._remove(new.name, True)
            raise
        sandbox = self._sandbox(new, model, plan, listed, forget)
        sandbox.unenforced = unenforced
        return sandbox

    async def _up(
        self,
        new: NewProject,
        model: compose_model.Model,
        plan: compose_model.ProjectPlan,
    ) -> tuple[str, ...]:
        """Bring it up; returns which limits are not enforced, a line each."""
        assert new.spec.compose_file is not None
        folder, limit = new.spec.compose_file.parent, new.spec.start_timeout_seconds
        asks_for_storage = new.spec.limits.storage_mib is not None
        refused = dict(self._refused_limits) if asks_for_storage else {}
        while True:
            runnable = compose_model.runnable(model, plan, without=refused)
            try:
                with anyio.fail_after(limit):
                    await self._compose.up(runnable, new.name, folder)
            except ComposeFailed as error:
                key = refused_limit(error.text)
                if key is None or key in refused:
                    culprit = await self._culprit(new)
                    raise _failed(new, culprit or error.text) from error
                refused[key] = error.text.splitlines()[-1].removeprefix(_SAID_BY_DAEMON)
                if key == STORAGE:
                    self._refused_limits[key] = refused[key]
            except TimeoutError as error:
                text = (
                    f"not up within {limit:g} s (environment.build_timeout_sec in "
                    f"task.toml): {await self._culprit(new)}"
                )
                raise _failed(new, text) from error
            else:
                return tuple(f"{key} (docker: {text})" for key, text in refused.items())

    async def _culprit(self, new: NewProject) -> str:
        """The service that keeps the project from being up, and what it said last."""
        return await self._engine.call(
            lambda client: compose_project.why_not_up(client, new.name)
        )

    def _sandbox(
        self,
        new: NewProject,
        model: compose_model.Model,
        plan: compose_model.ProjectPlan,
        listed: list[compose_project.Container],
        forget: Callable[[str], object],
    ) -> ComposeSandbox:
        firsts = compose_project.first_of_each(listed)

        def options(service: str) -> dict[str, Any]:
            image = plan.images[service]
            user = str(model["services"][service].get("user") or image.user)
            return {
                "name": firsts[service].name,
                "image": replace(image, user=user),
                "remove": _never,
                "forget": forget,
            }

        services = {}
        for service, container in firsts.items():
            if service == MAIN_SERVICE:
                continue
            own = model["services"][service].get("working_dir")
            workdir = own or plan.images[service].workdir or "/"
            services[service] = ServiceSandbox(
                self._engine,
                container.id,
                workdir=workdir,
                user=None,
                **options(service),
            )
        sandbox = ComposeSandbox(
            self._engine,
            firsts[MAIN_SERVICE].id,
            workdir=plan.workdir,
            user=new.spec.user,
            unmade=OPEN_FOLDERS,
            project=new.name,
            services=services,
            remove_project=lambda project: self._remove(project, False),
            command=str(self._compose.program),
            **options(MAIN_SERVICE),
        )
        sandbox.warnings = self._readings[_key(new.spec)].warnings
        return sandbox

    async def _reading(self, spec: EnvironmentSpec) -> Reading:
        """How Compose reads the file, once per session, if nothing in it is refused."""
        key = _key(spec)
        if key not in self._readings:
            self._readings[key] = await self._read(spec)
        return self._readings[key]

    async def _read(self, spec: EnvironmentSpec) -> Reading:
        assert spec.compose_file is not None
        path = spec.compose_file
        try:
            _refuse(path, list(checks.unreadable(path)))
        except OSError as error:
            raise SandboxStartFailed(f"cannot read {path}: {error}") from error
        folder = path.parent.resolve()
        file = ComposeFile(
            path=path,
            project=compose_model.PROJECT,
            base=compose_model.base_file(spec),
            variables={
                **spec.variables,
                **spec.env,
                **compose_model.known_variables(spec, str(folder)),
            },
        )
        try:
            named = await self._compose.read(file, env_files=False)
            model = compose_model.with_log_volumes(named.model)
            _refuse(path, checks.problems(model, folder))
            reading = await self._compose.read(file, env_files=True)
        except ComposeFailed as error:
            raise UnsupportedByProvider(
                f"{path}: Compose cannot read it: {error.text}"
            ) from error
        warnings = [
            f"{path.name}: ${{{match['name']}}} is not set, and empty there"
            for text in reading.warnings
            if (match := _UNSET.match(text))
        ]
        return Reading(compose_model.with_log_volumes(reading.model), tuple(warnings))

    async def _get_images(
        self, model: compose_model.Model, new: NewProject
    ) -> tuple[compose_model.Model, Mapping[str, Image]]:
        """The image of every service; ``main`` first, as others may be made of it."""
        main = await self._image(MAIN_SERVICE, model, new)
        model = compose_model.with_name(model, compose_model.MAIN_IMAGE, main.name)
        images = {MAIN_SERVICE: main}
        services = {
            name: service
            for name, service in model["services"].items()
            if name != MAIN_SERVICE
        }
        built = [name for name, service in services.items() if service.get("build")]
        await self._get_together(built, images, model, new)
        # A service may name the image that another one builds.
        made = {services[name].get("image"): images[name] for name in built}
        for name, service in services.items():
            if name not in images and service.get("image") in made:
                images[name] = made[service["image"]]
        pulled = [name for name in services if name not in images]
        await self._get_together(pulled, images, model, new)
        return model, images

    async def _get_together(
        self,
        services: Sequence[str],
        images: dict[str, Image],
        model: compose_model.Model,
        new: NewProject,
    ) -> None:
        failures: list[SandboxError | DaemonError] = []

        async def get(service: str) -> None:
            try:
                images[service] = await self._image(service, model, new)
            except (SandboxError, DaemonError) as error:
                failures.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for service in services:
                tasks.start_soon(get, service)
        if failures:
            raise failures[0]

    async def _image(
        self, name: str, model: compose_model.Model, new: NewProject
    ) -> Image:
        service, spec = model["services"][name], new.spec
        platform = service.get("platform") or spec.platform
        build = service.get("build")
        if name == MAIN_SERVICE and spec.image is not None:
            build = None  # a prebuilt image wins over what it was built from
        image = service.get("image")
        if build is None and image == compose_model.MAIN_IMAGE:
            image = spec.image
        if build is None and image is None:
            raise SandboxStartFailed(
                f"service '{name}' has no image: set environment.docker_image in "
                "task.toml, add environment/Dockerfile, or give it an image in "
                f"{spec.compose_file}",
                is_final=True,
            )
        source = None if build is None else _source(build, platform)
        wanted = replace(spec, image=image, build_context=None, platform=platform)
        try:
            return await self._images.ready(wanted, new.task, new.tell, source=source)
        except SandboxStartFailed as error:
            raise SandboxStartFailed(
                f"service '{name}': {error}", is_final=error.is_final
            ) from error


def _source(build: Mapping[str, Any], platform: str | None) -> BuildSource:
    """A build of the file, as the builders want it; Compose has made its paths absolute."""
    folder = Path(build["context"])
    args = (build.get("args") or {}).items()
    return BuildSource(
        folder,
        dockerfile=folder / build.get("dockerfile", DOCKERFILE),
        inline=build.get("dockerfile_inline"),
        args=tuple((key, compose_model.literal(value or "")) for key, value in args),
        target=build.get("target"),
        platform=platform,
    )


def _key(spec: EnvironmentSpec) -> object:
    """What decides over how Compose reads the file."""
    assert spec.compose_file is not None
    facts = spec.compose_file.stat()
    return (
        *(spec.compose_file, facts.st_mtime_ns, facts.st_size),
        *(spec.build_context, spec.network, spec.limits),
        tuple(spec.env.items()),
        tuple(spec.variables.items()),
    )


def _failed(new: NewProject, text: str) -> SandboxStartFailed:
    return SandboxStartFailed(f"{new.spec.compose_file}: {text}")


def _refuse(path: Path, problems: list[str]) -> None:
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems)
        raise UnsupportedByProvider(f"{path}: not for a sandbox:\n{lines}")


def _never(*_: object) -> None:
    """A container of a project is not removed by itself."""


def project_name(name: str) -> str:
    """``name`` as the name of a project, unique."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:48].strip("-_")
    return f"pytest-harbor-{plain}-{secrets.token_hex(4)}"
