"""In-place mode: the container that we run in is the sandbox.

For containers that forbid namespaces (the default of most CI services). Episodes use the
real folders one at a time, behind a lock that all processes share, and take back what
they made. Isolation is the container's alone.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from filelock import FileLock, Timeout

from pytest_harbor.errors import SandboxStartFailed, UnsupportedByProvider
from pytest_harbor.sandboxes.api import VERIFIER_TOOLS, Capabilities
from pytest_harbor.sandboxes.local.broker import files
from pytest_harbor.sandboxes.local.sandbox import OPEN_FOLDERS, LocalSandbox
from pytest_harbor.sandboxes.local.userland import SYSTEM_PATH
from pytest_harbor.sandboxes.owner import Owner

PLACES: Final = ("/app", "/tests", "/logs", "/solution")
ISOLATION: Final = "none of its own (in-place: the container is the sandbox)"
_LOCK_NAME = "pytest-harbor-in-place.lock"
_STATE_NAME = "pytest-harbor-in-place.json"
_POLL_SECONDS = 0.05
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
_CONTAINER_WORDS = ("docker", "kubepods", "containerd", "libpod", "lxc")


def is_container() -> bool:
    """Whether this looks like a container, by what engines leave in one."""
    if any(Path(path).exists() for path in _CONTAINER_FILES):
        return True
    try:
        groups = Path("/proc/1/cgroup").read_text(errors="replace")
    except OSError:
        return False
    return any(word in groups for word in _CONTAINER_WORDS)


def capabilities() -> Capabilities:
    """What the provider says of itself in this mode."""
    if os.geteuid() != 0:
        reason = "in-place mode of the local sandbox needs root (inside a container)"
        return Capabilities(False, reason=reason)
    return Capabilities(
        True,
        mode="in-place, root",
        isolation=ISOLATION,
        notes=(
            "isolation is the container's alone: commands see all of it",
            f"episodes use the real {', '.join(PLACES)}, one at a time",
        ),
        concurrent=False,
    )


def command_path() -> str:
    """PATH of commands, the running interpreter's folder last."""
    own = str(Path(sys.base_prefix) / "bin")
    return SYSTEM_PATH if own in SYSTEM_PATH.split(":") else f"{SYSTEM_PATH}:{own}"


def found_tools() -> frozenset[str]:
    """Which of the verifier's tools the container has."""
    path = command_path()
    return frozenset(tool for tool in VERIFIER_TOOLS if shutil.which(tool, path=path))


@dataclass(frozen=True)
class _Taken:
    """One folder before we used it; ``mode`` is ``None`` when it did not exist."""

    path: str
    mode: int | None = None
    uid: int = 0
    gid: int = 0


class Ground:
    """The real folders, held by one sandbox of one process of this machine.

    ``folder`` is where lock and state lie: the same for all processes.
    """

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or Path(tempfile.gettempdir())
        self._lock = FileLock(folder / _LOCK_NAME, thread_local=False)
        self._state = folder / _STATE_NAME

    async def take(self, places: Iterable[str]) -> None:
        """Wait until nobody holds the ground, then prepare it.

        Raises:
            UnsupportedByProvider: a place holds something that is not ours.
            SandboxStartFailed: a place cannot be made.
        """
        while True:
            try:
                self._lock.acquire(timeout=0)
                break
            except Timeout:
                await anyio.sleep(_POLL_SECONDS)
        try:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._prepare, tuple(places))
        except BaseException:
            self._lock.release()
            raise

    def _prepare(self, places: tuple[str, ...]) -> None:
        self._clear()  # of an owner that was killed: the lock says that none lives
        taken = [_look(path) for path in places]
        owner = {"owner": str(Owner.current()), "taken": [asdict(one) for one in taken]}
        self._state.write_text(json.dumps(owner))
        try:
            for path in places:
                if path not in ("/tests", "/solution"):
                    Path(path).mkdir(mode=0o755, parents=True, exist_ok=True)
            for path in OPEN_FOLDERS:
                Path(path).mkdir(parents=True, exist_ok=True)
                Path(path).chmod(0o777)
        except OSError as error:
            self._clear()
            raise SandboxStartFailed(
                f"in-place: cannot make {error.filename}: {error.strerror}"
            ) from error

    async def release(self) -> None:
        """Take back what was made, and let the next one in."""
        with anyio.CancelScope(shield=True):
            try:
                await anyio.to_thread.run_sync(self._clear)
            finally:
                self._lock.release()

    def sweep(self) -> int:
        """Take back what a killed owner left, unless the ground is held."""
        if not self._state.exists():
            return 0
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return 0
        try:
            return self._clear()
        finally:
            self._lock.release()

    def _clear(self) -> int:
        try:
            state = json.loads(self._state.read_text())
        except FileNotFoundError:
            return 0
        except ValueError:  # killed while writing it, before anything was made
            self._state.unlink()
            return 0
        for one in state["taken"]:
            _give_back(_Taken(**one))
        self._state.unlink()
        return len(state["taken"])


def _look(path: str) -> _Taken:
    try:
        facts = Path(path).lstat()
    except FileNotFoundError:
        return _Taken(path)
    if not stat.S_ISDIR(facts.st_mode) or any(Path(path).iterdir()):
        raise UnsupportedByProvider(
            f"in-place: {path} already holds something. This mode of the local sandbox "
            f"uses the real {', '.join(PLACES)} and needs them empty or absent"
        )
    return _Taken(path, stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid)


def _give_back(taken: _Taken) -> None:
    path = Path(taken.path)
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        files.remove(parent, path.name)
    finally:
        os.close(parent)
    if taken.mode is not None:
        path.mkdir(exist_ok=True)
        os.chown(path, taken.uid, taken.gid)
        path.chmod(taken.mode)


class InPlaceSandbox(LocalSandbox):
    """A sandbox that gives the ground back when it ends."""

    ground: Ground | None = None

    async def stop(self) -> None:
        with anyio.CancelScope(shield=True):
            await super().stop()
            ground, self.ground = self.ground, None
            if ground is not None:
                await ground.release()
