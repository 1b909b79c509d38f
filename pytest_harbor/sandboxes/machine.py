"""What the processes of one user on this machine share: folders of lock files.

The system gives locks back when a process dies, however that was.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
from filelock import FileLock, Timeout

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.api import Tell

_POLL_SECONDS = 0.02
_LONG_POLL_SECONDS = 0.1
"""For what takes seconds and more."""
_PATIENCE_SECONDS = 60.0
"""Whoever holds a place may have been stopped (Ctrl-Z); a limit is no reason to hang."""


def shared_folder(name: str) -> Path:
    """The folder for locks of one kind. Raises SandboxStartFailed."""
    folder = Path(tempfile.gettempdir(), f"pytest-harbor-{os.getuid()}", name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.parent.chmod(0o700)  # fails when somebody else made it
    except OSError as error:
        raise SandboxStartFailed(f"cannot use {folder} for locks: {error}") from error
    return folder


@contextlib.asynccontextmanager
async def alone(
    file: Path, tell: Tell | None = None, *, does: str = ""
) -> AsyncIterator[None]:
    """Hold a lock file, whichever process has it now: one makes what others wait for.

    ``does`` is what another holder is at; ``tell`` hears of it once, when there is one.
    """
    lock = FileLock(file, thread_local=False)
    has_told = False
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except Timeout:
            if tell is not None and not has_told:
                tell(f"waiting for another process that {does}")
                has_told = True
            await anyio.sleep(_LONG_POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


@contextlib.asynccontextmanager
async def place(name: str, number: int) -> AsyncIterator[None]:
    """Hold one of ``number`` places of this machine, whichever process wants the others.

    Raises:
        SandboxStartFailed: the folder of the locks cannot be used.
    """
    folder = shared_folder(name)
    locks = [
        FileLock(folder / f"{index}.lock", thread_local=False)
        for index in range(number)
    ]
    held: FileLock | None = None
    with anyio.move_on_after(_PATIENCE_SECONDS):
        while (held := _first_free(locks)) is None:  # noqa: ASYNC110 - locks tell nobody
            await anyio.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        if held is not None:
            held.release()


def _first_free(locks: list[FileLock]) -> FileLock | None:
    for lock in locks:
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
            return lock
    return None
