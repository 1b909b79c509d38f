"""In-place mode: the container that we run in is the sandbox.

For containers that forbid namespaces (the default of most CI services). Episodes use the
real folders one at a time, behind a lock that all processes share, and take back what
they made. Isolation is the container's alone.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

import anyio

from pytest_harbor.sandboxes.api import VERIFIER_TOOLS, Capabilities
from pytest_harbor.sandboxes.local.ground import PLACES, Ground
from pytest_harbor.sandboxes.local.sandbox import LocalSandbox
from pytest_harbor.sandboxes.local.userland import SYSTEM_PATH

ISOLATION: Final = "none of its own (in-place: the container is the sandbox)"
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


class InPlaceSandbox(LocalSandbox):
    """A sandbox that gives the ground back when it ends."""

    ground: Ground | None = None
    is_disposable = False

    async def stop(self) -> None:
        with anyio.CancelScope(shield=True):
            await super().stop()
            ground, self.ground = self.ground, None
            if ground is not None:
                await ground.release()
