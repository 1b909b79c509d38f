"""The sandboxes of one try of an episode: started here, and all ended here."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Final

import anyio

from pytest_harbor.agents.python_agent import describe
from pytest_harbor.errors import SandboxError
from pytest_harbor.sandboxes.api import TASK_LABEL, Provider, Sandbox, Tell
from pytest_harbor.sandboxes.environment import EnvironmentSpec

NOT_ENFORCED: Final = "not enforced: "
NOT_KEPT: Final = "not kept: "
"""What warnings begin with that the summary of a run tells once."""

_MAX_NAME = 40


class SandboxSet:
    """Starts sandboxes for one try and stops whatever is still up at its end."""

    def __init__(
        self, provider: Provider, task_id: str, *, keeps: bool, tell: Tell
    ) -> None:
        self._provider = provider
        self._task_id = task_id
        self._tell = tell
        self._up: list[Sandbox] = []
        self.unenforced: dict[str, None] = {}
        """Warnings about limits that are none, each once."""
        self.keeps = keeps
        """True when sandboxes may have to stay up, so that none is ended early."""

    async def prepare(self, spec: EnvironmentSpec) -> None:
        """Get ready what a later start needs. Raises as ``Provider.prepare``."""
        labels = {TASK_LABEL: self._task_id}
        await self._provider.prepare(
            spec, name=self._task_id, labels=labels, tell=self._tell
        )

    async def start(self, spec: EnvironmentSpec, role: str = "") -> Sandbox:
        """Start one. Raises as ``Provider.start``."""
        name = _sandbox_name(self._task_id, role)
        sandbox = await self._provider.start(
            spec, name=name, labels={TASK_LABEL: self._task_id}, tell=self._tell
        )
        self._up.append(sandbox)
        for line in sandbox.unenforced:
            self.unenforced[f"{NOT_ENFORCED}{line}"] = None
        return sandbox

    async def finish(self, sandbox: Sandbox) -> None:
        """End one that has no further use, unless it may have to be kept.

        One that cannot be ended now costs no score: :meth:`stop` tries again and tells.
        """
        if self.keeps:
            return
        with anyio.CancelScope(shield=True):
            try:
                await sandbox.stop()
            except SandboxError:
                return
        self._up.remove(sandbox)

    async def stop(self) -> Sequence[str]:
        """End all that is up, cancelled or not; returns what went wrong."""
        problems = []
        with anyio.CancelScope(shield=True):
            while self._up:
                sandbox = self._up.pop()
                try:
                    await sandbox.stop()
                except Exception as error:  # noqa: BLE001 - the others must end too
                    problems.append(
                        f"sandbox {sandbox.id} was not removed: {describe(error)}"
                    )
        return problems

    async def keep(self) -> tuple[Sequence[str], Sequence[str]]:
        """Leave up what can be; returns how to enter each, and what went wrong.

        What cannot be kept stays in the set and is ended with it.
        """
        ways: list[str] = []
        problems: list[str] = []
        with anyio.CancelScope(shield=True):
            for sandbox in tuple(self._up):
                try:
                    await sandbox.keep()
                except SandboxError as error:
                    problems.append(f"{NOT_KEPT}{error}")
                    continue
                self._up.remove(sandbox)
                ways.append(sandbox.how_to_enter())
        return ways, problems


def _sandbox_name(task_id: str, role: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{task_id}-{role}".strip("-"))
    return f"{readable[:_MAX_NAME].strip('-.')}-{secrets.token_hex(4)}"
