"""The content of a build context, and the tag that follows from it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from docker.utils.build import create_archive, exclude_paths

DOCKERFILE = "Dockerfile"
REPOSITORY = "pytest-harbor"
_IGNORE_FILE = ".dockerignore"
_EXTRA_DOCKERFILE = ".pytest-harbor.Dockerfile"
_CHUNK = 1024 * 1024


@dataclass(frozen=True)
class BuildSource:
    """A build context, and what in it says how to build."""

    folder: Path
    dockerfile: Path | None = None
    """``None`` means ``Dockerfile`` in the folder; another may lie outside of it."""
    inline: str | None = None
    """The Dockerfile's text, where it is no file."""
    args: tuple[tuple[str, str], ...] = ()
    target: str | None = None
    platform: str | None = None

    @property
    def path(self) -> Path:
        """The Dockerfile; a name for it where it is no file."""
        if self.inline is not None:
            return self.folder / "dockerfile_inline"
        return self.folder / DOCKERFILE if self.dockerfile is None else self.dockerfile

    def text(self) -> str:
        """What the Dockerfile says. Raises OSError."""
        return self.inline or self.path.read_text(errors="replace")

    @property
    def inner_name(self) -> str | None:
        """The Dockerfile's path in the context, if it is part of it."""
        if self.inline is None and self.path.is_relative_to(self.folder):
            return str(self.path.relative_to(self.folder))
        return None

    @property
    def _options(self) -> str:
        """What beside the context decides over the image; empty for a plain folder."""
        said: dict[str, object] = {"args": self.args, "target": self.target}
        inner = self.inner_name
        said["dockerfile"] = self.text() if inner is None else inner
        plain = {"args": (), "target": None, "dockerfile": DOCKERFILE}
        return "" if said == plain else json.dumps(said)


def image_tag(source: BuildSource, name: str) -> str:
    """The tag of what ``source`` builds: its name and the hash of its content.

    Names, modes, link targets and bytes count, and so do the options of the build; times
    do not, and neither does what ``.dockerignore`` leaves out. Raises OSError.
    """
    digest = hashlib.sha256((source.platform or "").encode())
    digest.update(source._options.encode())  # noqa: SLF001 - its own module
    for relative in _members(source):
        path = source.folder / relative
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


def archive(source: BuildSource) -> tuple[IO[bytes], str]:
    """The context as a tar for the classic builder, and the Dockerfile's name in it.

    Raises OSError.
    """
    name, extra = source.inner_name, []
    if name is None:
        name = _EXTRA_DOCKERFILE
        extra = [(name, source.text())]
    content = create_archive(
        root=str(source.folder), files=_members(source), gzip=False, extra_files=extra
    )
    return cast("IO[bytes]", content), name


def _members(source: BuildSource) -> list[str]:
    """What the builder gets to see, sorted; ``.dockerignore`` has Docker's meaning."""
    context = source.folder
    ignore = context / _IGNORE_FILE
    lines = ignore.read_text(errors="replace").splitlines() if ignore.is_file() else []
    patterns = [
        line for raw in lines if (line := raw.strip()) and not line.startswith("#")
    ]
    dockerfile = source.inner_name or DOCKERFILE
    try:
        return sorted(exclude_paths(str(context), patterns, dockerfile=dockerfile))
    except re.error as error:
        raise ValueError(f"{_IGNORE_FILE}: a pattern is none: {error.msg}") from error


def _slug(name: str) -> str:
    """``name`` as a component of an image's name."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return plain[:64].strip("-") or "task"
