"""Where installed software of local sandboxes is kept on the host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.api import Tell
from pytest_harbor.sandboxes.install import Installs
from pytest_harbor.sandboxes.install_script import InstallScript
from pytest_harbor.sandboxes.local.cache import Cache, cache_home


class LocalInstalls:
    """A folder per installation, which sandboxes see read-only at its prefix."""

    def __init__(self, folder: Path | None = None) -> None:
        self._cache = Cache(
            lambda: folder or cache_folder(), Installs(), "installed agents"
        )

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
        return await self._cache.ready(
            key, make, what=install.name, tell=tell, force=force
        )

    def sweep(self) -> int:
        """Remove what dead owners left half made, and what was replaced a day ago."""
        return self._cache.sweep()


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/pytest-harbor/agents``."""
    return cache_home() / "agents"


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
