"""Environment data as a file tree, for agents that read files (spec 5.1, 11)."""

from __future__ import annotations

import base64
import binascii
import json
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pytest_harbor.errors import StepError
from pytest_harbor.graphs.collecting import name_problem

MAX_FILES: Final = 100_000
MAX_BYTES: Final = 2 * 1024**3
_ROOT: Final = "root/"
_DATA: Final = "data.json"


def file_tree(payload: Path) -> dict[str, bytes]:
    """The files of an environment artifact, by their relative path.

    It is a JSON object with ``files: [{path, content, encoding?: "base64"}]``, or a zip
    with ``root/...`` members and an optional ``data.json`` of that shape; a file below
    ``root/`` wins.

    Raises:
        StepError: it is neither, or a path leads out.
        OSError: it cannot be read.
    """
    if zipfile.is_zipfile(payload):
        with zipfile.ZipFile(payload) as archive:
            return _from_zip(archive, payload.name)
    return dict(_from_json(payload.read_bytes(), payload.name))


def _from_zip(archive: zipfile.ZipFile, where: str) -> dict[str, bytes]:
    members = archive.infolist()
    size = sum(member.file_size for member in members)
    if len(members) > MAX_FILES or size > MAX_BYTES:
        raise StepError(
            f"{where}: {len(members)} files of {size} bytes are more than an artifact "
            f"may unpack to ({MAX_FILES}, {MAX_BYTES})"
        )
    tree: dict[str, bytes] = {}
    try:
        if _DATA in archive.namelist():
            tree.update(_from_json(archive.read(_DATA), f"{where}/{_DATA}"))
        for member in members:
            if member.is_dir() or not member.filename.startswith(_ROOT):
                continue
            if stat.S_ISLNK(member.external_attr >> 16):
                raise StepError(f"{where}: {member.filename} is a link")
            name = _checked(member.filename.removeprefix(_ROOT), where)
            tree[name] = archive.read(member)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise StepError(f"{where}: cannot be unpacked: {error}") from error
    return tree


def _from_json(content: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    try:
        data: Any = json.loads(content)
    except ValueError as error:
        raise StepError(
            f"{where}: neither a zip nor JSON ({error}), so an agent cannot get it as files"
        ) from error
    files = data.get("files") if isinstance(data, dict) else None
    if not isinstance(files, list):
        raise StepError(
            f"{where}: has no list `files`, so there is no file for an agent"
        )
    for number, file in enumerate(files):
        place = f"{where}: files[{number}]"
        if not isinstance(file, dict) or not isinstance(file.get("path"), str):
            raise StepError(f"{place} has no `path`")
        yield _checked(file["path"], where), _content(file, place)


def _content(file: dict[str, Any], place: str) -> bytes:
    content = file.get("content")
    encoding = file.get("encoding")
    if not isinstance(content, str) or encoding not in (None, "base64"):
        raise StepError(
            f"{place} needs a text `content`, and an `encoding` of base64 or none"
        )
    if encoding is None:
        return content.encode(errors="surrogatepass")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise StepError(f"{place}: its content is no base64: {error}") from error


def _checked(name: str, where: str) -> str:
    """A relative path without ``..``. Raises StepError for another."""
    if problem := name_problem(name) or ("is odd" if "\0" in name else None):
        raise StepError(f"{where}: {name!r} {problem}; nothing was written")
    return name
