"""Whether a container lives, and what it died of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import docker

from pytest_harbor.errors import SandboxLost
from pytest_harbor.sandboxes.docker.client import NOT_FOUND, DaemonError, Engine

_LAST_LOG_LINES = 10


class Life:
    """The life of one container, as the daemon tells it and as we end it."""

    def __init__(self, engine: Engine, container: str, name: str, image: str) -> None:
        self.engine = engine
        self.container = container
        """The daemon's ID."""
        self.name = name
        """What people know it by; another once it is kept."""
        self.image = image
        """What people know its image by."""
        self.is_stopped = False
        """True once its end was asked for."""
        self._death = ""

    @property
    def is_over(self) -> bool:
        """True when it is known that nothing can be asked of it any more."""
        return self.is_stopped or bool(self._death)

    def check(self) -> None:
        """Raises SandboxLost for one whose life is over, without asking the daemon."""
        if self.is_stopped:
            raise SandboxLost(f"{self.name} has been stopped")
        if self._death:
            raise SandboxLost(self._death)

    async def is_running(self) -> bool:
        """Ask the daemon. One that does not answer has no running container."""
        return bool((await self._state()).get("Running"))

    async def lost(self, reason: str) -> SandboxLost:
        """The error for a container that died, with what the daemon knows of it."""
        state = await self._state()
        if state.get("Running"):
            return SandboxLost(f"{self.name} cannot be used: {reason}")
        facts = _how_it_died(state)
        logs = await self._last_log_lines()
        reason = "; ".join(part for part in (*facts, reason) if part) + logs
        self._death = f"{self.name} is dead: {reason}"
        return SandboxLost(self._death)

    async def kill(self, why: str) -> SandboxLost:
        """Kill it; returns the error for whoever asks something of it from now on."""
        self._death = f"{self.name}: {why}"
        with contextlib.suppress(DaemonError):  # it ended by itself
            await self.engine.call(lambda client: client.kill(self.container))
        return SandboxLost(self._death)

    async def _state(self) -> dict[str, Any]:
        try:
            facts = await self.engine.call(
                lambda client: client.inspect_container(self.container)
            )
        except DaemonError as error:
            gone = error.status == NOT_FOUND
            return {"Error": "it was removed" if gone else error.text}
        return dict(facts["State"])

    async def _last_log_lines(self) -> str:
        def read(client: docker.APIClient) -> bytes:
            return bytes(client.logs(self.container, tail=_LAST_LOG_LINES))

        try:
            text = (await self.engine.call(read)).decode(errors="replace").strip()
        except DaemonError:
            return ""
        return f"\n{text}" if text else ""


def _how_it_died(state: Mapping[str, Any]) -> Iterator[str]:
    if state.get("OOMKilled"):
        yield "it ran out of memory (environment.memory_mb)"
    if state.get("ExitCode") is not None:
        yield f"exit code {state['ExitCode']}"
    if state.get("Error"):
        yield str(state["Error"])
