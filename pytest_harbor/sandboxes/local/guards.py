"""The folders that a provider makes for its images: skeleton and guards."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_harbor.sandboxes.local.stack import Stack, make_guard, places
from pytest_harbor.sandboxes.local.userland import (
    FRESH_FOLDERS,
    FRESH_LINKS,
    SHARED_FOLDERS,
)

_MOUNT_POINTS: Final = ("/dev", "/etc", "/opt", "/proc", "/usr")
_MODES: Final = {folder: int(mode, 8) for folder, mode in FRESH_FOLDERS}
_INJECTED: Final = ("resolv.conf", "hosts")
"""What a root file system gets of the host's ``/etc``, as Docker does it."""


def skeleton(folder: Path) -> Path:
    """Folders that every sandbox has, made below ``folder`` on first use."""
    made = folder / "skeleton"
    if made.is_dir():
        return made
    made.mkdir()
    made.chmod(0o755)
    for place in (*_MOUNT_POINTS, *_MODES):
        target = Path(f"{made}{place}")
        target.mkdir(parents=True, exist_ok=True)
        target.chmod(_MODES.get(place, 0o755))
    for link, target_text in FRESH_LINKS:
        Path(f"{made}{link}").symlink_to(target_text)
    return made


def guarded(
    arguments: Callable[[Stack], list[str]], stack: Stack, folder: Path, etc: Path
) -> Stack:
    """``stack`` with a guard for all places that its ``arguments`` mount something at.

    Guards are made below ``folder``; ``etc`` is the cleaned copy of the host's.
    """
    where = places(arguments(stack))
    links, texts = {}, {}
    if stack.base is None:
        links = {
            place: os.readlink(place)  # noqa: PTH115 - a text, not a path of ours
            for place in SHARED_FOLDERS
            if Path(place).is_symlink()
        }
    else:
        texts = {
            f"/etc/{name}": (etc / name).read_text(errors="replace")
            for name in _INJECTED
            if _is_file(etc / name)
        }
    parts = [f"{place}{is_file}" for place, is_file in sorted(where.items())]
    parts += [*links, *texts]
    digest = hashlib.sha256("\0".join(parts).encode(errors="surrogateescape"))
    guard = folder / f"guard-{digest.hexdigest()[:16]}"
    if not guard.is_dir():
        guard.mkdir()
        guard.chmod(0o755)
        make_guard(guard, where, modes=_MODES, links=links, texts=texts)
    return replace(stack, guard=guard)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
