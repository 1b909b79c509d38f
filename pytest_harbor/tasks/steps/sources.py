"""What a ``load_artifact`` names as its sources: artifacts and URLs (spec 5)."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from pydantic import model_validator

from pytest_harbor.tasks.steps.values import Id, Record, Version, refused


class ArtifactRef(Record):
    """One of ``artifacts``."""

    id: Id
    """The artifact."""
    version: Version | None = None
    """Its version; unset: the newest."""


class Url(Record):
    """One of ``urls``; a string is short for ``{"url": <string>}``."""

    url: Id
    """Where the content is."""
    filename: str | None = None
    """Name it is saved under; unset: the last part of the URL's path."""

    @property
    def name(self) -> str:
        """The name that the file gets; empty when the URL has none."""
        if self.filename is not None:
            return self.filename
        # Decoded first, so that an escaped slash separates, too.
        return posixpath.basename(unquote(urlsplit(self.url).path))

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sound(self) -> Url:
        try:
            scheme = urlsplit(self.url).scheme
        except ValueError:
            scheme = ""
        if not scheme:
            raise refused(f"'{self.url}' is no URL")
        if not self.name:
            raise refused(f"'{self.url}' has no file name: give a filename with it")
        if problem := plain_name_problem(self.name):
            raise refused(problem)
        return self


def plain_name_problem(name: str) -> str | None:
    """Why ``name`` cannot be a file's name directly in a folder, or ``None``."""
    if name in ("", ".", "..") or any(sign in name for sign in "/\\\0"):
        return f"'{name}' is no plain file name"
    return None


def urls_problem(urls: Sequence[Url]) -> str | None:
    """Why two downloads would meet, or ``None``.

    Two URLs that end alike are told apart by :func:`download_names`; a name that the
    file gives is never changed.
    """
    given = [url.filename for url in urls if url.filename is not None]
    for name in given:
        if given.count(name) > 1:
            return f"two of them have the filename '{name}'"
    for url in urls:
        if url.filename is None and url.name in given:
            return f"'{url.url}' would be saved as '{url.name}', another one's filename"
    return None


def download_names(urls: Sequence[Url]) -> list[str]:
    """The name that each download is saved under; a repeated one gets ``-1``, ``-2``."""
    given = {url.filename for url in urls if url.filename is not None}
    taken: set[str] = set()
    names = []
    for url in urls:
        name, count = url.name, 0
        stem, extension = posixpath.splitext(name)
        while url.filename is None and (name in taken or (count and name in given)):
            count += 1
            name = f"{stem}-{count}{extension}"
        taken.add(name)
        names.append(name)
    return names
