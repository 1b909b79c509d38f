"""The object store of a run (spec 9.3): a key space that outlives every sandbox."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path

from pytest_harbor.events import Json


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
