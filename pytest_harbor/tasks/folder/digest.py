"""The digest of a task: its folder's content and the dataset settings applied to it."""

# Thousands of folders are read, and a Path object for each name doubles the time.
# ruff: noqa: PTH115, PTH123

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_harbor.tasks.folder.task import Task

# Left behind by tools that only looked at the folder; never part of a task.
IGNORED = frozenset({"__pycache__", ".DS_Store"})
CHUNK_BYTES = 1024 * 1024


def folder_digest(folder: Path) -> str:
    """The SHA-256 of a task folder, in hexadecimal.

    Names, contents, executable bits and link targets count. Times, owners and other
    mode bits do not, so that a fresh checkout has the same digest, nor do hidden names at
    the top, where tools keep their own (``.git``, ``.pytest_cache``). Unlike the load it
    reads every file.

    Raises:
        OSError: something cannot be read.
    """
    whole = hashlib.sha256()
    for name, path in _members(str(folder), ""):
        _add(whole, name, path)
    return whole.hexdigest()


def task_digest(folder: str, task: Task) -> str:
    """The digest of everything that decides what the task is.

    ``folder`` is its folder's; the dataset adds its multipliers, platform, overrides and
    shared verifier.
    """
    if task.dataset is None:
        return folder
    settings = {
        "timeout_multiplier": task.dataset.timeout_multiplier,
        "environment": task.dataset.overrides.get(task.id, {}),
    }
    # Absent where they say nothing, so that digests of earlier runs stay.
    if task.dataset.resource_multiplier != 1.0:
        settings["resource_multiplier"] = task.dataset.resource_multiplier
    if task.dataset.platform is not None:
        settings["platform"] = task.dataset.platform
    text = json.dumps(settings, sort_keys=True, default=str)
    whole = hashlib.sha256(f"{folder}\0dataset\0{text}\0".encode())
    verifier = task.verifier_py
    if verifier is not None and verifier == task.dataset.verifier_py:
        whole.update(b"verifier\0" + _file_hash(str(verifier)))
    return whole.hexdigest()


def _members(folder: str, prefix: str) -> Iterator[tuple[str, str]]:
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name in IGNORED or (not prefix and entry.name.startswith(".")):
            continue
        name = prefix + entry.name
        yield name, entry.path
        if entry.is_dir(follow_symlinks=False):
            yield from _members(entry.path, f"{name}/")


def _add(whole: hashlib._Hash, name: str, path: str) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        kind, content = b"link", os.fsencode(os.readlink(path))
    elif stat.S_ISDIR(mode):
        kind, content = b"folder", b""
    elif stat.S_ISREG(mode):
        kind = b"program" if mode & stat.S_IXUSR else b"file"
        content = _file_hash(path)
    else:
        kind, content = b"special", b""
    # Lengths keep one member's end from reading as the next one's start.
    encoded = os.fsencode(name)
    whole.update(b"%s %d %d\0" % (kind, len(encoded), len(content)))
    whole.update(encoded)
    whole.update(content)


def _file_hash(path: str | Path) -> bytes:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()
