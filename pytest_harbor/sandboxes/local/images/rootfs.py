"""Root file systems that stand in for an image: a folder, or a tar that is unpacked once."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path
from typing import Final

from pytest_harbor.errors import BuildFailed, SandboxStartFailed

_SHELL: Final = "/bin/sh"
_MOST_LINKS: Final = 40
_NO_DEV: Final = ("--anchored", "--exclude=./dev/*", "--exclude=dev/*")


def fingerprint(path: Path) -> str:
    """What tells a folder or tar from what it was before, by names, sizes and times.

    Raises:
        SandboxStartFailed: it is not there, or cannot be what commands run in.
    """
    try:
        if not path.is_dir():
            facts = path.stat()
            return _hash([f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}"])
        _check(path)
        return _hash(_facts(path))
    except OSError as error:
        raise SandboxStartFailed(
            f"root file system {path}: {error.strerror}", is_final=True
        ) from error


def _hash(parts: list[str]) -> str:
    text = "\n".join(parts)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _facts(top: Path) -> list[str]:
    found = [str(top)]
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(folder, name)  # noqa: PTH118 - ten thousands of them
            facts = os.lstat(path)
            below = os.path.relpath(path, top)
            _refuse_device(below, facts.st_mode)
            found.append(
                f"{below}\0{facts.st_mode}\0{facts.st_uid}\0{facts.st_gid}"
                f"\0{facts.st_size}\0{facts.st_mtime_ns}"
            )
    return found


def _refuse_device(below: str, mode: int) -> None:
    # Below /dev none is seen: the sandbox has devices of its own there.
    is_device = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
    if is_device and not below.startswith("dev/"):
        raise SandboxStartFailed(
            f"root file system: {below} is a device, which no sandbox may have",
            is_final=True,
        )


def _check(top: Path) -> None:
    if os.geteuid() != 0 and top.stat().st_uid != os.geteuid():
        raise SandboxStartFailed(
            f"root file system {top}: belongs to another user; a normal user's sandbox "
            "needs one of its own (a tar will do), or run as root",
            is_final=True,
        )
    if not _leads_somewhere(top, _SHELL):
        hint = ""
        if (top / "manifest.json").exists():
            hint = "; this is what docker save writes, docker export is meant"
        raise SandboxStartFailed(
            f"root file system {top}: it has no {_SHELL}{hint}", is_final=True
        )


def _leads_somewhere(top: Path, path: str) -> bool:
    """Whether a path leads to a file, with its links read as the sandbox will."""
    pending = [part for part in path.split("/") if part]
    current: list[str] = []
    links = 0
    while pending:
        part = pending.pop(0)
        if part == "..":
            current = current[:-1]
            continue
        here = top.joinpath(*current, part)
        if here.is_symlink() and links < _MOST_LINKS:
            links += 1
            link = str(here.readlink())
            current = [] if link.startswith("/") else current
            pending = [one for one in link.split("/") if one not in ("", ".")] + pending
            continue
        current.append(part)
    return top.joinpath(*current).is_file()


def unpack(tar: Path, target: Path) -> None:
    """Unpack a tar into an empty folder, devices apart.

    Raises:
        BuildFailed: it cannot be unpacked, or is no root file system.
    """
    who = [] if os.geteuid() == 0 else ["--no-same-owner"]
    done = subprocess.run(
        ["tar", "-xpf", str(tar), "-C", str(target), "--numeric-owner", *who, *_NO_DEV],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env={"PATH": os.defpath},
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise BuildFailed(f"cannot unpack {tar}: {last[0]}")
    _check(target)
    _facts(target)
