"""Folders on the host that are made once and kept for later sandboxes.

Each is filled beside its place and appears there in one step, so that nobody ever sees a half
of it, whoever is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.api import Tell
from pytest_harbor.sandboxes.install import Installs
from pytest_harbor.sandboxes.owner import Owner

STAGING_SUFFIX: Final = ".making"
OLD_SUFFIX: Final = ".old"
_OLD_SECONDS: Final = 86_400.0
_OWNER_FILE: Final = "owner"
_FILES: Final = "files"


class Cache:
    """Finished folders by key. ``what_for`` is what messages say is kept there."""

    def __init__(
        self,
        folder: Callable[[], Path],
        once: Installs,
        what_for: str,
        *,
        is_private: bool = False,
    ) -> None:
        self._find_folder = folder
        self._once = once
        self._what_for = what_for
        self._mode = 0o700 if is_private else 0o755

    @property
    def _folder(self) -> Path:
        return self._find_folder()

    def path(self, key: str) -> Path:
        """Where what has this key is, or would be."""
        return self._folder / key / _FILES

    async def ready(
        self,
        key: str,
        make: Callable[[Path], Awaitable[None]],
        *,
        what: str,
        tell: Tell | None,
        force: bool,
    ) -> Path:
        """The folder with this key; ``make`` fills one that is not there.

        ``make`` may use the folder beside the one it fills; that does not stay.

        Raises:
            InstallFailed: or what else ``make`` raises.
            SandboxStartFailed: the cache cannot be written.
        """
        final = self._folder / key

        async def find() -> Path | None:
            return final / _FILES if await anyio.Path(final).is_dir() else None

        async def fill() -> Path:
            try:
                staging = self._new_staging(key)
            except OSError as error:
                raise SandboxStartFailed(
                    f"cannot write {self._folder}, where {self._what_for} are kept: "
                    f"{error.strerror}"
                ) from error
            try:
                await make(staging / _FILES)
                await anyio.to_thread.run_sync(self._put_in_place, staging, final)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(remove_tree, staging)
            return final / _FILES

        return await self._once.once(key, find, fill, what=what, tell=tell, force=force)

    def _new_staging(self, key: str) -> Path:
        self._folder.mkdir(mode=self._mode, parents=True, exist_ok=True)
        staging = Path(
            tempfile.mkdtemp(prefix=f"{key}.", suffix=STAGING_SUFFIX, dir=self._folder)
        )
        (staging / _OWNER_FILE).write_text(str(Owner.current()))
        (staging / _FILES).mkdir()
        return staging

    def _put_in_place(self, staging: Path, final: Path) -> None:
        """Let the finished folder appear in one step; an older one makes way."""
        if final.exists():  # sandboxes that run have it mounted: it goes later
            final.rename(staging.with_suffix(OLD_SUFFIX))
        done = staging / "done"
        done.mkdir(mode=self._mode)
        (staging / _FILES).rename(done / _FILES)
        done.rename(final)

    def sweep(self) -> int:
        """Remove what dead owners left half made, and what was replaced a day ago.

        Returns how many folders that were. What is there stays: it is a cache.
        """
        removed = 0
        for staging in self._folder.glob(f"*{STAGING_SUFFIX}"):
            try:
                owner = Owner.parse((staging / _OWNER_FILE).read_text())
            except OSError:
                continue
            if owner is not None and owner.is_dead:
                remove_tree(staging)
                removed += 1
        long_ago = time.time() - _OLD_SECONDS
        for old in self._folder.glob(f"*{OLD_SUFFIX}"):
            with contextlib.suppress(OSError):
                if old.stat().st_ctime < long_ago:
                    remove_tree(old)
                    removed += 1
        return removed


def cache_home() -> Path:
    """``$XDG_CACHE_HOME/pytest-harbor``; below the temporary folder for want of a home."""
    cache = os.environ.get("XDG_CACHE_HOME")
    if not cache:
        home = Path.home()
        usable = os.access(home, os.W_OK | os.X_OK)
        cache = str(home / ".cache") if usable else tempfile.gettempdir()
    return Path(cache, "pytest-harbor")


def remove_tree(folder: Path) -> None:
    """Remove a folder, also where a command took its own rights to it away."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        return
    # The kernel's own folders of an overlay have no rights at all either.
    for path, names, _ in os.walk(folder):
        for name in names:
            inner = os.path.join(path, name)  # noqa: PTH118 - as os.walk has them
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(os.lstat(inner).st_mode):
                    os.chmod(inner, 0o700)  # noqa: PTH101 - as above
    shutil.rmtree(folder, ignore_errors=True)
