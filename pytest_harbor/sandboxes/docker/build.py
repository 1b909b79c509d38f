"""Pulling and building images, with errors that a task's author can act on."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import docker
import requests
from anyio.streams.text import TextReceiveStream

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.docker import context
from pytest_harbor.sandboxes.docker.client import DaemonError, Engine, daemon_errors

T = TypeVar("T")

SHOWN_LINES = 30
"""Last lines of a build's log that an error shows."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEREDOC = re.compile(
    r"^\s*(RUN|COPY|ADD)\b.*<<-?\s*[\"']?\w+", re.IGNORECASE | re.MULTILINE
)
_OUTSIDE = re.compile(
    r"COPY failed|ADD failed|forbidden path outside the build context"
    r"|failed to compute cache key|no such file or directory|not found",
    re.IGNORECASE,
)


async def pull(engine: Engine, name: str) -> None:
    """Pull an image. Raises DaemonError with the daemon's own message."""
    repository, tag = _split_name(name)

    def work(client: docker.APIClient) -> None:
        for event in client.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in event:
                raise DaemonError(str(event["error"]), 500)

    await _interruptible(engine, work)


async def build(engine: Engine, folder: Path, tag: str, *, force: bool) -> None:
    """Build ``folder`` as ``tag``: by BuildKit where the CLI has it, else classically.

    Raises:
        SandboxStartFailed: with the last lines of the build's log, and a hint.
        DaemonError: the daemon is gone.
    """
    if not (folder / context.DOCKERFILE).is_file():
        raise SandboxStartFailed(f"{folder} has no {context.DOCKERFILE}")
    log: deque[str] = deque(maxlen=SHOWN_LINES)
    has_buildx = await _has_buildx()
    if has_buildx:
        failure = await _build_with_buildx(folder, tag, force, log)
    else:
        failure = await _build_classically(engine, folder, tag, force, log)
    if failure:
        raise SandboxStartFailed(_build_error(folder, failure, log, has_buildx))


async def _build_classically(
    engine: Engine, folder: Path, tag: str, force: bool, log: deque[str]
) -> str:
    def work(client: docker.APIClient) -> str:
        try:
            content = context.archive(folder)
        except OSError as error:
            return f"cannot read the build context: {error}"
        with content:
            events = client.build(
                fileobj=content,
                custom_context=True,
                tag=tag,
                nocache=force,
                rm=True,
                forcerm=True,
                decode=True,
            )
            return _follow(events, log)

    try:
        return await _interruptible(engine, work)
    except DaemonError as error:
        if error.status is None:
            raise
        return error.text


def _follow(events: Iterable[Mapping[str, Any]], log: deque[str]) -> str:
    """Collect the log's lines; returns the error that ended the build, if one did.

    What commands write arrives in fragments, each in colours of its own when it is
    standard error: lines are put together here.
    """
    rest = ""
    for event in events:
        if "error" in event:
            log.extend([rest] if rest else [])
            return str(event["error"]).strip()
        text = _COLOURS.sub("", str(event.get("stream", "")))
        *lines, rest = (rest + text).replace("\r", "\n").split("\n")
        log.extend(line for line in lines if line.strip())
    return ""


async def _build_with_buildx(
    folder: Path, tag: str, force: bool, log: deque[str]
) -> str:
    command = ["docker", "buildx", "build", "--load", "--progress=plain", "--tag", tag]
    command += ["--no-cache"] if force else []
    process = await anyio.open_process(
        [*command, str(folder)], stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    rest = ""
    try:
        assert process.stdout is not None
        async for text in TextReceiveStream(process.stdout, errors="replace"):
            *lines, rest = (rest + text).split("\n")
            log.extend(lines)
        log.extend([rest] if rest else [])
        code = await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.aclose()
    return f"docker buildx build ended with exit code {code}" if code else ""


async def _has_buildx() -> bool:
    try:
        found = await anyio.run_process(["docker", "buildx", "version"], check=False)
    except OSError:
        return False
    return found.returncode == 0


def _build_error(
    folder: Path, failure: str, log: Iterable[str], has_buildx: bool
) -> str:
    lines = [line for line in log if line.strip()]
    dockerfile = folder / context.DOCKERFILE
    text = dockerfile.read_text(errors="replace")
    parts = [f"building {dockerfile} failed: {failure}", *lines]
    if not has_buildx and _HEREDOC.search(text):
        parts.append(
            "hint: the Dockerfile has a heredoc (<<EOF), which needs BuildKit; install "
            "the docker buildx plugin, or write the lines with printf or COPY"
        )
    if _OUTSIDE.search("\n".join([failure, *lines[-5:]])):
        parts.append(
            f"hint: the build context is {folder}, nothing outside of it can be "
            f"copied; paths in COPY and ADD start there (not `COPY {folder.name}/...`)"
        )
    return "\n".join(parts)


class _TrackingClient(docker.APIClient):
    """Remembers its last response, so that another thread can hang up."""

    response: requests.Response | None = None

    def send(self, request: Any, **options: Any) -> requests.Response:
        self.response = super().send(request, **options)
        return self.response

    def hang_up(self) -> None:
        """Make a read that goes on in another thread end; the daemon then stops too."""
        if self.response is not None:
            # AttributeError: urllib3 before 2.3, where the thread ends with the build.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                self.response.raw.shutdown()


async def _interruptible(engine: Engine, work: Callable[[docker.APIClient], T]) -> T:
    """Run something long in a thread that ends when the caller is cancelled."""
    client = engine.long_client(_TrackingClient)

    def in_thread() -> T:
        try:
            with daemon_errors():
                return work(client)
        finally:
            client.close()

    try:
        return await anyio.to_thread.run_sync(in_thread, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        client.hang_up()
        raise


def _split_name(name: str) -> tuple[str, str | None]:
    """Repository and tag; ``latest`` rather than every tag, digests stay whole."""
    if "@" in name:
        return name, None
    head, slash, last = name.rpartition("/")
    base, _, tag = last.partition(":")
    return f"{head}{slash}{base}", tag or "latest"
