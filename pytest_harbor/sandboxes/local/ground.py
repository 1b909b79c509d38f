"""The real folders that episodes use in-place, one after the other.

Before a folder is used it is noted what was there, and afterwards only that is undone: what
the episode made below names that were free, in folders that are still the same ones.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import anyio
import anyio.to_thread
from filelock import FileLock, Timeout

from pytest_harbor.errors import SandboxStartFailed, UnsupportedByProvider
from pytest_harbor.sandboxes.local.broker import files, orphans, processes
from pytest_harbor.sandboxes.local.sandbox import OPEN_FOLDERS
from pytest_harbor.sandboxes.owner import Owner

PLACES: Final = ("/app", "/tests", "/logs", "/solution")
_MADE_LATER: Final = ("/tests", "/solution")  # by the upload that needs them
_LOCK_NAME = "pytest-harbor-in-place.lock"
_STATE_NAME = "pytest-harbor-in-place.json"
_POLL_SECONDS = 0.05
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Identity:
    """Tells a folder from another one that has its name later."""

    device: int
    inode: int

    @classmethod
    def of(cls, facts: os.stat_result) -> Identity:
        """The identity in the result of a ``stat``."""
        return cls(facts.st_dev, facts.st_ino)


@dataclass(frozen=True)
class Found:
    """An empty folder that was there."""

    identity: Identity
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True)
class Claim:
    """A name before we used it, in a folder that was there."""

    folder: str
    """Its real path."""
    identity: Identity
    name: str
    found: Found | None
    """What had the name; ``None`` when nothing did."""

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Claim:
        """Read what ``asdict`` made. Raises KeyError, TypeError: something else."""
        found = values["found"]
        if found is not None:
            found = Found(**{**found, "identity": Identity(**found["identity"])})
        identity = Identity(**values["identity"])
        return cls(**{**values, "identity": identity, "found": found})


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
        try:
            claims = {path: look(path) for path in places}
            # Written before anything is made, and again for each thing that was.
            taken = [
                claim
                for path, claim in claims.items()
                if claim.found is not None or path in _MADE_LATER
            ]
            since = _now_ticks()
            self._note(taken, since)
            for path, claim in claims.items():
                if path in _MADE_LATER:
                    continue
                if claim.found is None:
                    Path(claim.folder, claim.name).mkdir(mode=0o755)
                    taken.append(claim)
                    self._note(taken, since)
                Path(path).mkdir(mode=0o755, parents=True, exist_ok=True)
            for path in OPEN_FOLDERS:
                Path(path).mkdir(parents=True, exist_ok=True)
                Path(path).chmod(0o777)
        except OSError as error:
            self._clear()
            raise SandboxStartFailed(
                f"in-place: cannot make {error.filename}: {error.strerror}"
            ) from error

    def _note(self, taken: list[Claim], since: int) -> None:
        state = {
            "owner": str(Owner.current()),
            "since": since,
            "taken": [asdict(claim) for claim in taken],
        }
        descriptor, name = tempfile.mkstemp(dir=self._state.parent)
        with os.fdopen(descriptor, "w") as file:
            json.dump(state, file)
        Path(name).replace(self._state)

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
        """Undo what the state says; returns how many places that were."""
        text = _read_own(self._state)
        if text is None:
            return 0
        try:
            state = json.loads(text)
            since = int(state["since"])
            claims = [Claim.parse(values) for values in state["taken"]]
        except (ValueError, KeyError, TypeError):  # of another version
            self._state.unlink()
            return 0
        _kill_orphans(since)
        for claim in reversed(claims):
            give_back(claim)
        self._state.unlink()
        return len(claims)


def look(path: str) -> Claim:
    """Note what has a name now, or the first missing folder above it.

    Raises:
        UnsupportedByProvider: something of somebody else has it.
        OSError: it cannot be looked at.
    """
    if ".." in PurePosixPath(path).parts:
        raise UnsupportedByProvider(
            f"in-place: {path} leads elsewhere: remove the '..'"
        )
    first = Path(path)
    while not os.path.lexists(first.parent):
        first = first.parent
    folder = first.parent.resolve(strict=True)
    identity = Identity.of(folder.stat())
    try:
        facts = (folder / first.name).lstat()
    except FileNotFoundError:
        return Claim(str(folder), identity, first.name, None)
    if not stat.S_ISDIR(facts.st_mode) or any((folder / first.name).iterdir()):
        raise UnsupportedByProvider(
            f"in-place: {path} already holds something. This mode of the local sandbox "
            f"uses the real {', '.join(PLACES)} and needs them empty or absent"
        )
    mode = stat.S_IMODE(facts.st_mode)
    found = Found(Identity.of(facts), mode, facts.st_uid, facts.st_gid)
    return Claim(str(folder), identity, first.name, found)


def give_back(claim: Claim) -> None:
    """Make it as it was; another folder than the one that was looked into stays."""
    try:
        folder = os.open(claim.folder, _FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        if Identity.of(os.fstat(folder)) == claim.identity:
            _restore(folder, claim.name, claim.found)
    finally:
        os.close(folder)


def _restore(folder: int, name: str, found: Found | None) -> None:
    try:
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if found is None:
        # Something mounted there is no work of an episode, which cannot mount.
        if now is not None and now.st_dev == os.fstat(folder).st_dev:
            files.remove(folder, name)
        return
    # A file that took the folder's place may have got its inode as well.
    is_folder = now is not None and stat.S_ISDIR(now.st_mode)
    if now is not None and is_folder and Identity.of(now) == found.identity:
        files.remove_content(folder, name)
    else:
        files.remove(folder, name)
        os.mkdir(name, dir_fd=folder)
    place = os.open(name, _FOLDER, dir_fd=folder)
    try:
        os.fchown(place, found.uid, found.gid)
        os.fchmod(place, found.mode)
    finally:
        os.close(place)


def _read_own(path: Path) -> str | None:
    """The content of a file of ours; others could name any folder in theirs."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(file, encoding="utf-8", errors="replace") as text:
        facts = os.fstat(file)
        is_ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
        return text.read() if is_ours else None


def _kill_orphans(since: int) -> None:
    proc = processes.open_proc()
    try:
        processes.kill_all(lambda: orphans.find(proc, since))
    finally:
        os.close(proc)


def _now_ticks() -> int:
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
    return int(seconds * os.sysconf("SC_CLK_TCK"))
