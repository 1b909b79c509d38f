"""Building images, with errors that a task's author can act on."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import docker
from anyio.streams.text import TextReceiveStream

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.api import Tell
from pytest_harbor.sandboxes.docker import context, faults
from pytest_harbor.sandboxes.docker.client import DaemonError, Engine
from pytest_harbor.sandboxes.docker.dockerfile import needs_buildkit
from pytest_harbor.sandboxes.docker.long_calls import interruptible, telling

SHOWN_LINES = 30
"""Last lines of a build's log that an error shows."""

_STEP_CHARS = 90
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STEP = re.compile(
    r"^(?:#\d+ \[[^\]]*?(?P<kit>\d+/\d+)\]|Step (?P<classic>\d+/\d+) :)\s*(?P<what>.*)"
)
_BUILDKIT_FAILURE = re.compile(r"^ERROR: (?:failed to build: )?(.*)")
_OUTSIDE = re.compile(
    r"COPY failed|ADD failed|forbidden path outside the build context"
    r"|failed to compute cache key|no such file or directory|not found",
    re.IGNORECASE,
)
_OF_PROGRAMS = re.compile(
    r"(?:LD|DOCKER|BUILD\w*|COMPOSE|GO\w*|XDG|OTEL|SSL)(?:_|$)|HOME$|PATH$|TMPDIR$"
    r"|(?:HTTPS?|NO|ALL)_PROXY$",
    re.IGNORECASE,
)
"""Variables that loaders, libraries and the docker command listen to."""

_NO_BUILDX_SINCE = 23
"""From this version of the command on, BuildKit is in the buildx plugin alone."""


@dataclass(frozen=True)
class Builder:
    """Who builds: BuildKit by a command, or (no command) the daemon's classic builder."""

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_buildkit(self) -> bool:
        """False for the classic builder."""
        return bool(self.command)


async def find_builder() -> Builder:
    """The best builder here: the buildx plugin, an older command's own BuildKit, or none.

    ``DOCKER_BUILDKIT=0`` asks for the classic one, as it does of the command.
    """
    if os.environ.get("DOCKER_BUILDKIT") == "0":
        return Builder()
    if await _said_by("docker", "buildx", "version") is not None:
        return Builder(("docker", "buildx", "build", "--load"))
    version = re.search(r"version (\d+)\.", await _said_by("docker", "--version") or "")
    if version and int(version[1]) < _NO_BUILDX_SINCE:
        return Builder(("docker", "build"), {"DOCKER_BUILDKIT": "1"})
    return Builder()


async def _said_by(*command: str) -> str | None:
    try:
        done = await anyio.run_process(command, check=False)
    except OSError:
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


@dataclass(frozen=True)
class Recipe:
    """What is to be built."""

    source: context.BuildSource
    tag: str
    use_cache: bool = True

    @property
    def folder(self) -> Path:
        """The build context."""
        return self.source.folder


async def build(
    engine: Engine, builder: Builder, recipe: Recipe, tell: Tell | None
) -> None:
    """Build an image.

    Raises:
        SandboxStartFailed: with the last lines of the build's log, and a hint.
        DaemonError: the daemon is gone.
    """
    if recipe.source.inline is None and not recipe.source.path.is_file():
        name = recipe.source.inner_name or recipe.source.path
        raise SandboxStartFailed(f"{recipe.folder} has no {name}", is_final=True)
    log = BuildLog(recipe.folder)

    async def run() -> str:
        if builder.is_buildkit:
            return await _build_by_command(builder, recipe, log)
        return await _build_classically(engine, recipe, log)

    failure = await telling(tell, log.line, run)
    if failure:
        raise SandboxStartFailed(
            _error_text(recipe, failure, log, builder),
            is_final=faults.is_final_build(failure, log.lines),
        )


class BuildLog:
    """The end of a build's log, and the step that it is at."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: deque[str] = deque(maxlen=SHOWN_LINES)
        self._step = ""
        self._rest = ""

    def feed(self, text: str) -> None:
        """Take the next piece of output.

        What commands write arrives in fragments, each in colours of its own when it is
        standard error: lines are put together here.
        """
        text = _COLOURS.sub("", text)
        *lines, self._rest = (self._rest + text).replace("\r", "\n").split("\n")
        for line in lines:
            self._add(line)

    def end(self) -> None:
        """Nothing more comes."""
        rest, self._rest = self._rest, ""
        self._add(rest)

    def _add(self, line: str) -> None:
        if not line.strip():
            return
        self._lines.append(line)
        if step := _STEP.match(line):
            number = step["kit"] or step["classic"]
            self._step = f"step {number} {step['what']}"[:_STEP_CHARS].rstrip()

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines."""
        return tuple(self._lines)

    def line(self) -> str:
        """How far it is."""
        where = f": {self._step}" if self._step else ""
        return f"building the image of {self._folder}{where}"


async def _build_classically(engine: Engine, recipe: Recipe, log: BuildLog) -> str:
    def work(client: docker.APIClient) -> str:
        try:
            content, dockerfile = context.archive(recipe.source)
        except OSError as error:
            return f"cannot read the build context: {error}"
        with content:
            events = client.build(
                fileobj=content,
                custom_context=True,
                tag=recipe.tag,
                dockerfile=dockerfile,
                buildargs=dict(recipe.source.args),
                target=recipe.source.target or "",
                nocache=not recipe.use_cache,
                platform=recipe.source.platform,
                rm=True,
                forcerm=True,
                decode=True,
            )
            return follow(events, log)

    try:
        return await interruptible(engine, work)
    except DaemonError as error:
        if error.status is None:
            raise
        return error.text


def follow(events: Iterable[Mapping[str, Any]], log: BuildLog) -> str:
    """Collect the log's lines; returns the error that ended the build, if one did."""
    for event in events:
        if "error" in event:
            log.end()
            return str(event["error"]).strip()
        log.feed(str(event.get("stream", "")))
    log.end()
    return ""


async def _build_by_command(builder: Builder, recipe: Recipe, log: BuildLog) -> str:
    command = [*builder.command, "--progress=plain", "--tag", recipe.tag]
    command += [] if recipe.use_cache else ["--no-cache"]
    source = recipe.source
    command += ["--platform", source.platform] if source.platform else []
    command += ["--target", source.target] if source.target else []
    # By name alone, the value is taken from the environment, which nobody else sees; but
    # no task may set a variable that means something to the command itself.
    hidden = {
        name: value
        for name, value in source.args
        if name not in os.environ and not _OF_PROGRAMS.match(name)
    }
    for name, value in source.args:
        command += ["--build-arg", name if name in hidden else f"{name}={value}"]
    command += ["--file", "-" if source.inline is not None else str(source.path)]
    process = await anyio.open_process(
        [*command, str(recipe.folder)],
        stdin=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **hidden, **builder.env},
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(anyio.BrokenResourceError):
            await process.stdin.send((source.inline or "").encode())
        await process.stdin.aclose()
        async for text in TextReceiveStream(process.stdout, errors="replace"):
            log.feed(text)
        log.end()
        code = await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.aclose()
    if code == 0:
        return ""
    # Its last line says why, but for what newer versions add about themselves.
    said = [match[1] for line in log.lines if (match := _BUILDKIT_FAILURE.match(line))]
    why = (*log.lines[-1:], *said)
    return why[-1] if why else f"{' '.join(command[:3])} ended with exit code {code}"


def _error_text(recipe: Recipe, failure: str, log: BuildLog, builder: Builder) -> str:
    parts = [f"building {recipe.source.path} failed: {failure}"]
    parts += [line for line in log.lines if line.strip() != failure]
    needs = needs_buildkit(recipe.source.text())
    # Where a command ran, the builder had understood the whole file.
    if needs and not (builder.is_buildkit or faults.is_command(failure)):
        parts.append(
            f"hint: the Dockerfile needs BuildKit ({', '.join(needs)}), and only "
            "Docker's classic builder is here; install the docker buildx plugin"
        )
    if _OUTSIDE.search("\n".join([failure, *log.lines[-5:]])):
        parts.append(
            f"hint: the build context is {recipe.folder}, nothing outside of it can be "
            "copied; paths in COPY and ADD start there "
            f"(not `COPY {recipe.folder.name}/...`)"
        )
    return "\n".join(parts)
