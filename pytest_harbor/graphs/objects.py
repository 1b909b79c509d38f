"""The object store of a run (spec 9.3): a key space that outlives every sandbox."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread

from pytest_harbor.errors import MissingExtra, SettingsError
from pytest_harbor.events import Json

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


class ObjectStore(ABC):
    """Objects by key (``runs/<instance>/prompts/<id>/trajectory-1.json``).

    Keys are relative, with ``/`` between their parts. An object is written once: a second
    ``put`` of a key is an error, so that no run changes what another one left.
    """

    @abstractmethod
    async def put(self, key: str, content: bytes | Path) -> str:
        """Store bytes or a file of this machine; returns the object's URL.

        Raises:
            ValueError: the key is not one (absolute, or with ``..``).
            FileExistsError: there is an object of that key.
            OSError: it cannot be written.
        """

    @abstractmethod
    async def get(self, url: str) -> bytes:
        """The content of an object. Raises OSError; ValueError for a foreign URL."""

    @abstractmethod
    async def fetch(self, url: str, target: Path) -> None:
        """Write an object to a file of this machine. Raises as :meth:`get`."""

    @abstractmethod
    async def list(self, prefix: str) -> tuple[str, ...]:
        """URLs of the objects whose keys begin with ``prefix``, sorted."""

    async def put_json(self, key: str, value: Json) -> str:
        """Store plain data as JSON. Secrets are the caller's to mask. Raises as :meth:`put`."""
        text = json.dumps(value, indent=1, ensure_ascii=False)
        return await self.put(key, text.encode(errors="surrogatepass"))


def checked_key(key: str) -> str:
    """The key, if it is one. Raises ValueError."""
    parts = key.split("/")
    if not key or "\0" in key or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{key!r} is no key of an object")
    return key


class FolderStore(ObjectStore):
    """Objects as files of a folder; their URLs are ``file://`` ones."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - links stay

    async def put(self, key: str, content: bytes | Path) -> str:
        path = self.root / checked_key(key)
        await anyio.to_thread.run_sync(_write_once, path, content)
        return path.as_uri()

    async def get(self, url: str) -> bytes:
        return await anyio.Path(self._path(url)).read_bytes()

    async def fetch(self, url: str, target: Path) -> None:
        source = self._path(url)
        await anyio.to_thread.run_sync(shutil.copyfile, source, target)

    async def list(self, prefix: str) -> tuple[str, ...]:
        return await anyio.to_thread.run_sync(self._list, prefix)

    def _list(self, prefix: str) -> tuple[str, ...]:
        # Only the folder that the prefix leads into is walked.
        top = self.root / posixpath.dirname(prefix)
        return tuple(
            sorted(
                path.as_uri()
                for path in top.rglob("*")
                if path.is_file()
                and path.relative_to(self.root).as_posix().startswith(prefix)
            )
        )

    def _path(self, url: str) -> Path:
        parsed = urlsplit(url)
        path = Path(os.path.normpath(unquote(parsed.path)))
        if parsed.scheme != "file" or not path.is_relative_to(self.root):
            raise ValueError(f"{url} is no object of the store in {self.root}")
        return path


def _write_once(path: Path, content: bytes | Path) -> None:
    """Write a file that nobody sees half-done, and that is never replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file)
        Path(name).chmod(0o644)
        os.link(name, path)  # raises FileExistsError, which a rename does not
    finally:
        Path(name).unlink()


class FsspecStore(ObjectStore):
    """Objects below a URL that fsspec knows (``s3://bucket/folder``, ``memory://``)."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingExtra(
                f"an object store at {url} needs fsspec: "
                "pip install 'pytest-harbor[objects]'"
            ) from error
        try:
            found: tuple[Any, str] = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise SettingsError(f"object store {url}: {error}") from error
        self._files: AbstractFileSystem = found[0]
        self._root = found[1].rstrip("/")

    async def put(self, key: str, content: bytes | Path) -> str:
        path = f"{self._root}/{checked_key(key)}"
        await anyio.to_thread.run_sync(self._put, path, content)
        return str(self._files.unstrip_protocol(path))

    def _put(self, path: str, content: bytes | Path) -> None:
        # Nothing is atomic here; keys hold the run's ID, so nobody else has them.
        if self._files.exists(path):
            raise FileExistsError(path)
        self._files.makedirs(posixpath.dirname(path), exist_ok=True)
        if isinstance(content, bytes):
            self._files.pipe_file(path, content)
        else:
            self._files.put_file(str(content), path)

    async def get(self, url: str) -> bytes:
        path = self._path(url)
        return bytes(await anyio.to_thread.run_sync(self._files.cat_file, path))

    async def fetch(self, url: str, target: Path) -> None:
        path = self._path(url)
        await anyio.to_thread.run_sync(self._files.get_file, path, str(target))

    async def list(self, prefix: str) -> tuple[str, ...]:
        return await anyio.to_thread.run_sync(self._list, prefix)

    def _list(self, prefix: str) -> tuple[str, ...]:
        top = f"{self._root}/{posixpath.dirname(prefix)}".rstrip("/")
        if not self._files.exists(top):
            return ()
        start = f"{self._root}/{prefix}".lstrip("/")
        return tuple(
            sorted(
                str(self._files.unstrip_protocol(path))
                for path in self._files.find(top)
                if str(path).lstrip("/").startswith(start)
            )
        )

    def _path(self, url: str) -> str:
        path = str(self._files._strip_protocol(url))  # noqa: SLF001 - fsspec has no public name
        if posixpath.normpath(path) != path or not path.startswith(f"{self._root}/"):
            raise ValueError(f"{url} is no object of the store in {self._root}")
        return path


def open_store(place: str | None, default: Path) -> ObjectStore:
    """The store at a folder or URL; ``None`` is ``default``.

    Raises:
        SettingsError: fsspec cannot use that URL.
        MissingExtra: fsspec is not installed.
    """
    if place is None:
        return FolderStore(default)
    if _SCHEME.match(place) is None:
        return FolderStore(Path(place).expanduser())
    if place.startswith("file://"):
        return FolderStore(Path(unquote(urlsplit(place).path)))
    return FsspecStore(place)
