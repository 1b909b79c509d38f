"""Where installed software of local sandboxes is kept on the host."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.api import InstallScript, Tell
from pytest_harbor.sandboxes.install import Installs
from pytest_harbor.sandboxes.owner import Owner

STAGING_SUFFIX: Final = ".making"
OLD_SUFFIX: Final = ".old"
_OLD_SECONDS: Final = 86_400.0
_OWNER_FILE: Final = "owner"
_FILES: Final = "files"


class LocalInstalls:
    """A folder per installation, which sandboxes see read-only at its prefix."""

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder
        self._installs = Installs()

    @property
    def _folder(self) -> Path:
        return self._given or cache_folder()

    async def ready(
        self,
        install: InstallScript,
        make: Callable[[Path], Awaitable[None]],
        tell: Tell | None,
        *,
        force: bool,
    ) -> Path:
        """The folder of an installation; ``make`` fills one that is not there.

        Raises:
            InstallFailed: the script failed.
            SandboxStartFailed: the cache cannot be written.
        """
        key = f"local-{install.name}-{install.digest(this_machine())}"
        final = self._folder / key

        async def find() -> Path | None:
            return final / _FILES if await anyio.Path(final).is_dir() else None

        async def fill() -> Path:
            try:
                staging = self._new_staging(key)
            except OSError as error:
                raise SandboxStartFailed(
                    f"cannot write {self._folder}, where installed agents are kept: "
                    f"{error.strerror}"
                ) from error
            try:
                await make(staging / _FILES)
                await anyio.to_thread.run_sync(_put_in_place, staging, final)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(_remove, staging)
            return final / _FILES

        return await self._installs.once(
            key, find, fill, what=install.name, tell=tell, force=force
        )

    def _new_staging(self, key: str) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        staging = Path(
            tempfile.mkdtemp(prefix=f"{key}.", suffix=STAGING_SUFFIX, dir=self._folder)
        )
        (staging / _OWNER_FILE).write_text(str(Owner.current()))
        (staging / _FILES).mkdir()
        return staging

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
                _remove(staging)
                removed += 1
        long_ago = time.time() - _OLD_SECONDS
        for old in self._folder.glob(f"*{OLD_SUFFIX}"):
            with contextlib.suppress(OSError):
                if old.stat().st_ctime < long_ago:
                    _remove(old)
                    removed += 1
        return removed


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/pytest-harbor/agents``; below the temporary folder for want of a home."""
    cache = os.environ.get("XDG_CACHE_HOME")
    if not cache:
        home = Path.home()
        usable = os.access(home, os.W_OK | os.X_OK)
        cache = str(home / ".cache") if usable else tempfile.gettempdir()
    return Path(cache, "pytest-harbor", "agents")


def this_machine() -> str:
    """What an installation depends on: the system and the interpreter that sandboxes see."""
    system = b""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        if Path(path).is_file():
            system = Path(path).read_bytes()
            break
    version = ".".join(map(str, sys.version_info[:2]))
    parts = (os.uname().machine, system.decode(errors="replace"), sys.base_prefix)
    return "\n".join([*parts, version])


def copy_in(source: Path, target: str) -> None:
    """Copy an installation into a real folder, for in-place sandboxes.

    Raises:
        SandboxStartFailed: it cannot be copied.
    """
    done = subprocess.run(
        ["cp", "-a", "--", f"{source}/.", target],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise SandboxStartFailed(f"cannot copy to {target}: {done.stderr.strip()}")


def _put_in_place(staging: Path, final: Path) -> None:
    """Let the finished folder appear in one step; an older one makes way."""
    if final.exists():  # sandboxes that run have it mounted: it goes later
        final.rename(staging.with_suffix(OLD_SUFFIX))
    done = staging / "done"
    done.mkdir()
    (staging / _FILES).rename(done / _FILES)
    done.rename(final)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
