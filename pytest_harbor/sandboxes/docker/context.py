"""The content of a build context, and the tag that follows from it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import IO, cast

from docker.utils.build import create_archive, exclude_paths

DOCKERFILE = "Dockerfile"
REPOSITORY = "pytest-harbor"
_IGNORE_FILE = ".dockerignore"
_CHUNK = 1024 * 1024


def image_tag(context: Path, name: str, platform: str | None = None) -> str:
    """The tag of what ``context`` builds: its name and the hash of its content.

    Names, modes, link targets and bytes count, and so does a ``platform``; times do
    not, and neither does what ``.dockerignore`` leaves out. Raises OSError.
    """
    digest = hashlib.sha256((platform or "").encode())
    for relative in _members(context):
        path = context / relative
        facts = path.lstat()
        digest.update(
            f"{relative}\0{facts.st_mode:o}\0".encode(errors="surrogateescape")
        )
        if stat.S_ISLNK(facts.st_mode):
            digest.update(os.fsencode(path.readlink()))
        elif stat.S_ISREG(facts.st_mode):
            with path.open("rb") as content:
                size = 0
                while chunk := content.read(_CHUNK):
                    size += len(chunk)
                    digest.update(chunk)
            digest.update(f"\0{size}".encode())
        digest.update(b"\0")
    return f"{REPOSITORY}/{_slug(name)}:{digest.hexdigest()[:32]}"


def archive(context: Path) -> IO[bytes]:
    """The context as a tar for the classic builder. Raises OSError."""
    files = _members(context)
    return cast("IO[bytes]", create_archive(root=str(context), files=files, gzip=False))


def _members(context: Path) -> list[str]:
    """What the builder gets to see, sorted; ``.dockerignore`` has Docker's meaning."""
    ignore = context / _IGNORE_FILE
    lines = ignore.read_text(errors="replace").splitlines() if ignore.is_file() else []
    patterns = [
        line for raw in lines if (line := raw.strip()) and not line.startswith("#")
    ]
    return sorted(exclude_paths(str(context), patterns, dockerfile=DOCKERFILE))


def _slug(name: str) -> str:
    """``name`` as a component of an image's name."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return plain[:64].strip("-") or "task"
