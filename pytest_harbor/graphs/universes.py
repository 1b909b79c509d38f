"""Collected files: each a file artifact, together a universe in the object store (spec 9.2)."""

from __future__ import annotations

import hashlib
import json
import mimetypes
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pytest_harbor.events import Json
from pytest_harbor.graphs.conversations import key_part
from pytest_harbor.graphs.objects import ObjectStore

MANIFEST: Final = "universe.json"
_UNKNOWN_TYPE: Final = "application/octet-stream"


@dataclass(frozen=True)
class FileArtifact:
    """One file of a universe."""

    id: str
    """Derived from the universe's ID and the path."""
    path: str
    """Below the universe's root, relative."""
    filename: str
    content_type: str
    object_url: str
    size: int
    mode: int
    """Permission bits in the sandbox."""


@dataclass(frozen=True)
class Universe:
    """Files that belong together."""

    id: str
    version: int
    files: tuple[FileArtifact, ...]

    def reference(self) -> dict[str, Json]:
        """What the context says of it."""
        return {"id": self.id, "version": self.version}


def universe_prefix(universe_id: str, version: int) -> str:
    """Where a universe's objects are: the key's beginning, ``/`` at its end."""
    parts = (key_part(part) or "_" for part in universe_id.split("/"))
    return f"universes/{'/'.join(parts)}/{version}/"


def file_key(universe_id: str, version: int, path: str) -> str:
    """The key of one file."""
    return f"{universe_prefix(universe_id, version)}files/{path}"


def file_artifact(
    universe_id: str, path: str, *, object_url: str, size: int, mode: int
) -> FileArtifact:
    """What is known of a stored file."""
    digest = hashlib.sha256(f"{universe_id}\0{path}".encode()).hexdigest()[:16]
    return FileArtifact(
        id=f"{universe_id}/{digest}",
        path=path,
        filename=posixpath.basename(path),
        content_type=mimetypes.guess_type(path)[0] or _UNKNOWN_TYPE,
        object_url=object_url,
        size=size,
        mode=mode,
    )


async def save_universe(store: ObjectStore, universe: Universe) -> str:
    """Store the list of its files; returns its URL. Raises as ``ObjectStore.put``."""
    key = universe_prefix(universe.id, universe.version) + MANIFEST
    return await store.put_json(key, asdict(universe))


async def read_universe(
    store: ObjectStore, reference: Mapping[str, Any]
) -> Universe | None:
    """The universe that a context refers to; ``None`` when the store has none of it.

    Raises:
        OSError: it cannot be read.
    """
    prefix = universe_prefix(str(reference["id"]), int(reference["version"]))
    urls = await store.list(prefix + MANIFEST)
    if not urls:
        return None
    data = json.loads(await store.get(urls[0]))
    files = tuple(FileArtifact(**file) for file in data["files"])
    return Universe(data["id"], data["version"], files)
