"""Pulling images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import docker

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.api import Tell
from pytest_harbor.sandboxes.docker import faults
from pytest_harbor.sandboxes.docker.client import DaemonError, Engine
from pytest_harbor.sandboxes.docker.long_calls import interruptible, telling

_MEGABYTE = 1_000_000
_HAS_ALL = ("Pull complete", "Already exists", "Download complete")


async def pull(engine: Engine, name: str, tell: Tell | None) -> None:
    """Pull an image.

    Raises:
        SandboxStartFailed: with the daemon's own message; final when the image is not
            to be had, and not when the registry cannot be reached.
        DaemonError: the daemon is gone.
    """
    repository, tag = split_name(name)
    progress = PullProgress(name)

    def work(client: docker.APIClient) -> None:
        for event in client.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in event:
                raise DaemonError(str(event["error"]), 500)
            progress.feed(event)

    try:
        await telling(tell, progress.line, lambda: interruptible(engine, work))
    except DaemonError as error:
        if error.status is None:
            raise
        raise _failed(name, error.text) from error


def _failed(name: str, text: str) -> SandboxStartFailed:
    is_final = faults.is_final_pull(text)
    what_to_do = (
        f"Check the name in environment.docker_image; `docker pull {name}` shows the "
        "same, `docker login` helps with a private registry."
        if is_final
        else f"Its registry does not serve it now; `docker pull {name}` shows the same."
    )
    return SandboxStartFailed(
        f"image {name} is not here and cannot be pulled: {text.rstrip('.')}. "
        f"{what_to_do}",
        is_final=is_final,
    )


class PullProgress:
    """How far a pull is, from the daemon's events."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._layers: dict[str, bool] = {}
        self._bytes: dict[str, int] = {}

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take the next event. Called in another thread than :meth:`line`."""
        layer, status = str(event.get("id", "")), str(event.get("status", ""))
        if not layer or status.startswith("Pulling from"):
            return
        self._layers[layer] = status in _HAS_ALL or self._layers.get(layer, False)
        if status == "Downloading":
            current = (event.get("progressDetail") or {}).get("current")
            self._bytes[layer] = int(current or 0)

    def line(self) -> str:
        """The state in a line."""
        layers = dict(self._layers)
        if not layers:
            return f"pulling image {self._name}"
        megabytes = sum(dict(self._bytes).values()) / _MEGABYTE
        return (
            f"pulling image {self._name}: {sum(layers.values())} of {len(layers)} "
            f"layers, {megabytes:.0f} MB"
        )


def split_name(name: str) -> tuple[str, str | None]:
    """Repository and tag; ``latest`` rather than every tag, digests stay whole."""
    if "@" in name:
        return name, None
    head, slash, last = name.rpartition("/")
    base, _, tag = last.partition(":")
    return f"{head}{slash}{base}", tag or "latest"
