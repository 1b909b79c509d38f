"""The connection to a Docker daemon: clients, threads, and errors.

docker-py is blocking and its sessions are not made for sharing, so every call borrows a
client of its own and runs in a worker thread. The API version is asked for once.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import docker
import requests
import urllib3
from docker.constants import MINIMUM_DOCKER_API_VERSION
from docker.errors import APIError, DockerException
from docker.utils import kwargs_from_env

from pytest_harbor.errors import HarborError, SandboxUnavailable
from pytest_harbor.sandboxes.docker.sockets import mended

T = TypeVar("T")
C = TypeVar("C", bound=docker.APIClient)

CALL_TIMEOUT_SECONDS = 120
"""A single answer of the daemon, not a build or pull; a loaded daemon takes seconds."""

RESTART_SECONDS = 30.0
"""How long a daemon that was there may stay away before it counts as gone."""

_PROBE_TIMEOUT_SECONDS = 15
_RESTART_POLL_SECONDS = 0.25
_DEFAULT_URL = "unix:///var/run/docker.sock"
_WORKER_THREADS = 32
"""Calls at a time; a running command holds no thread."""

REMEDY = (
    "Start Docker, or point DOCKER_HOST at a daemon; or run with "
    "--harbor-sandbox local, or skip such tasks with --harbor-unavailable skip."
)


NOT_FOUND = 404
"""The status of an answer about a container, image or path that is not there."""


class DaemonError(Exception):
    """Internal: the daemon refused a call (``status``) or did not answer (``None``)."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


class Engine:
    """A reachable daemon. Made by :meth:`connect`."""

    def __init__(self, options: dict[str, Any], facts: dict[str, Any]) -> None:
        self._options = options
        self.url: str | None = options.get("base_url")
        """Where it is; ``None`` for docker-py's own default."""
        self.api_version = str(facts["ApiVersion"])
        self.version = str(facts["Version"])
        names = [str(item.get("Name")) for item in facts.get("Components") or ()]
        self.is_podman = any("podman" in name.lower() for name in names)
        """True for Podman behind Docker's interface."""
        self._idle: list[docker.APIClient] = []
        self._lock = threading.Lock()
        self._threads = anyio.CapacityLimiter(_WORKER_THREADS)
        self._is_gone = False

    @classmethod
    async def connect(cls) -> Engine:
        """Reach the daemon that the environment or Docker's context names.

        Raises:
            SandboxUnavailable: none answers, or only over a way we cannot use.
        """
        options = _options()
        url = str(options.get("base_url") or "")
        if url.startswith(("ssh://", "npipe://")):
            raise SandboxUnavailable(
                f"a Docker daemon at {url} cannot be used: forward its socket "
                "(ssh -L /tmp/docker.sock:/var/run/docker.sock HOST) and set "
                "DOCKER_HOST=unix:///tmp/docker.sock."
            )
        try:
            facts = await anyio.to_thread.run_sync(_ask_version, options)
        except DaemonError as error:
            where = f"DOCKER_HOST={url}" if "DOCKER_HOST" in os.environ else url
            raise SandboxUnavailable(
                f"no Docker daemon answers at {where or _DEFAULT_URL}: {error.text}. "
                f"{REMEDY}"
            ) from error
        return cls(options, facts)

    async def call(self, work: Callable[[docker.APIClient], T]) -> T:
        """Run ``work`` with a client in a worker thread.

        A cancelled caller gets the result of a call under way first, so that
        nothing the daemon made is ever forgotten.

        Raises:
            DaemonError: the daemon refused, or does not answer.
        """
        return await anyio.to_thread.run_sync(self.run, work, limiter=self._threads)

    def run(self, work: Callable[[docker.APIClient], T]) -> T:
        """As :meth:`call`, in this thread."""
        client = self._borrow()
        try:
            with daemon_errors():
                result = work(client)
        except DaemonError as error:
            if error.status is None:  # no connection is to be trusted any more
                client.close()
                self.close()
            else:
                self._give_back(client)
            raise
        except BaseException:
            client.close()
            raise
        self._give_back(client)
        return result

    async def comes_back(self) -> bool:
        """Wait for a daemon that went away, as one does that restarts.

        Once nobody came back, the next callers only look: of a thousand episodes, not
        every one has half a minute for that.
        """
        until = anyio.current_time() + (0 if self._is_gone else RESTART_SECONDS)
        while not await self._answers():
            if anyio.current_time() >= until:
                self._is_gone = True
                return False
            await anyio.sleep(_RESTART_POLL_SECONDS)
        self._is_gone = False
        return True

    async def _answers(self) -> bool:
        try:
            await anyio.to_thread.run_sync(_ask_version, self._options)
        except DaemonError:
            return False
        return True

    def long_client(self, kind: type[C]) -> C:
        """A client of one's own that waits for ever, for builds and pulls."""
        options = {**self._options, "timeout": None}
        return mended(kind(version=self.api_version, **options))

    async def call_long(self, work: Callable[[docker.APIClient], T]) -> T:
        """As :meth:`call`, for what may take minutes."""

        def in_thread() -> T:
            client = self.long_client(docker.APIClient)
            try:
                with daemon_errors():
                    return work(client)
            finally:
                client.close()

        return await anyio.to_thread.run_sync(in_thread, limiter=self._threads)

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for client in idle:
            client.close()

    def _borrow(self) -> docker.APIClient:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        options = {**self._options, "timeout": CALL_TIMEOUT_SECONDS}
        return mended(docker.APIClient(version=self.api_version, **options))

    def _give_back(self, client: docker.APIClient) -> None:
        with self._lock:
            self._idle.append(client)


@contextlib.contextmanager
def daemon_errors() -> Iterator[None]:
    """Turn what docker-py, requests and urllib3 raise into :class:`DaemonError`."""
    try:
        yield
    except (HarborError, DaemonError):
        raise
    except APIError as error:
        raise DaemonError(
            str(error.explanation or error).strip(), error.status_code
        ) from error
    except (
        DockerException,
        requests.RequestException,
        urllib3.exceptions.HTTPError,
        http.client.HTTPException,
        OSError,
    ) as error:
        raise DaemonError(_in_words(error)) from error


def _in_words(error: BaseException) -> str:
    """What the system said, where it said something: the rest is its libraries' own."""
    if isinstance(error, (requests.Timeout, TimeoutError)):
        return "no answer in time"
    cause: BaseException | None = error
    said = ""
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            said = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return said or f"{type(error).__name__}: {error}"


def checked(response: requests.Response) -> requests.Response:
    """The response of a call made without docker-py's own methods, if it is a good one."""
    if response.status_code >= 400:
        try:
            text = str(response.json()["message"])
        except (ValueError, KeyError, TypeError):
            text = response.text
        response.close()
        raise DaemonError(text.strip(), response.status_code)
    return response


def _options() -> dict[str, Any]:
    options = dict(kwargs_from_env())
    if "base_url" not in options and "DOCKER_CONTEXT" not in os.environ:
        options.update(_context_host())
    return options


def _context_host() -> dict[str, Any]:
    """The socket of Docker's current context (Docker Desktop, rootless, colima)."""
    from docker.context import ContextAPI

    try:
        context: Any = ContextAPI.get_current_context()
        host = None if context.TLSConfig else context.Host
    except Exception:  # noqa: BLE001 - a broken context file is Docker's to complain about
        host = None
    return {"base_url": host} if host else {}


def _ask_version(options: dict[str, Any]) -> dict[str, Any]:
    with daemon_errors():
        options = {**options, "timeout": _PROBE_TIMEOUT_SECONDS}
        client = mended(docker.APIClient(version=MINIMUM_DOCKER_API_VERSION, **options))
        try:
            return dict(client.version(api_version=False))
        finally:
            client.close()
