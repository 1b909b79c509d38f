"""Removals that nobody waits for, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import anyio
import anyio.to_thread

from pytest_harbor.errors import SandboxError
from pytest_harbor.sandboxes.docker.client import DaemonError, Engine

_THREADS = 4


@dataclass(frozen=True)
class Removal:
    """One thing to remove. ``work`` raises DaemonError; ``command`` is what a person does."""

    work: Callable[[], object]
    command: str


class Removals:
    """Removes in threads: a large container takes seconds.

    What fails is tried again when a daemon that was away is back, and once more at the end.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._failed: dict[Removal, str] = {}

    def later(self, removal: Removal) -> None:
        """Remove soon; at once when it is too late for that."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                _THREADS, thread_name_prefix="pytest-harbor removal"
            )
        try:
            self._pool.submit(self._remove, removal)
        except RuntimeError:  # closed: of a start that was still under way
            self._remove(removal)

    def again(self) -> None:
        """Try again what failed."""
        for removal in list(self._failed):
            self.later(removal)

    async def finish(self, engine: Engine) -> None:
        """Wait for all.

        Raises:
            SandboxError: some things are left; with the commands that remove them.
        """
        if self._pool is not None:
            await anyio.to_thread.run_sync(self._pool.shutdown)
        if self._failed and await engine.comes_back():
            await anyio.to_thread.run_sync(self.again)
        if self._failed:
            reason = next(iter(self._failed.values()))
            commands = "; ".join(removal.command for removal in self._failed)
            raise SandboxError(f"not everything was removed ({reason}): {commands}")

    def _remove(self, removal: Removal) -> None:
        try:
            removal.work()
        except DaemonError as error:
            self._failed[removal] = error.text
        else:
            self._failed.pop(removal, None)
