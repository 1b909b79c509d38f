"""All transfers of one container, with the folders that the first of them makes."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_harbor.errors import SandboxError, TransferFailed
from pytest_harbor.sandboxes.docker import files
from pytest_harbor.sandboxes.docker.client import DaemonError
from pytest_harbor.sandboxes.docker.life import Life
from pytest_harbor.sandboxes.transfer_types import (
    Download,
    Downloaded,
    TransferLimits,
    Upload,
)


class Transfers:
    """Files into and out of a container; each raises as its namesake of ``Sandbox``.

    ``unmade`` are folders that the first transfer makes, because a request of their own
    would cost as much as a whole command; ``absent`` those of them that the image does
    not have.
    """

    def __init__(
        self, life: Life, *, unmade: Sequence[str] = (), absent: Sequence[str] = ()
    ) -> None:
        self._life = life
        self._unmade = tuple(unmade)
        self._absent = frozenset(absent)
        # Of the absent ones, when they were made, while nothing else was put there.
        self._made: dict[str, int] = {}

    async def complete(self) -> None:
        """Make what is yet unmade. Raises SandboxLost."""
        if self._unmade:
            try:
                await self._put((), ())
            except DaemonError as error:
                raise await self._life.lost(error.text) from error

    async def upload(self, uploads: Sequence[Upload], empty: Sequence[str]) -> None:
        """Copy in, after emptying the folders ``empty``."""
        fresh, others = files.split(uploads, empty)
        try:
            if empty:
                await self._put(fresh, empty)
            if others:
                await self._put(others, ())
        except DaemonError as error:
            raise await self._failed(error, uploads, empty) from error

    async def download(
        self, wanted: Download, limits: TransferLimits | None
    ) -> Downloaded:
        """Copy one path out."""
        made_at = self._made.get(wanted.source)
        try:
            return await self._life.engine.call(
                lambda client: files.get(
                    client, self._life.container, wanted, limits, made_at=made_at
                )
            )
        except DaemonError as error:
            if error.status is not None and await self._life.is_running():
                return Downloaded(wanted.source, "failed", reason=error.text)
            raise await self._life.lost(error.text) from error

    async def read_bytes(self, path: str, max_bytes: int) -> bytes | None:
        """The start of a file; ``None`` when it is none."""
        try:
            return await self._life.engine.call(
                lambda client: files.read(client, self._life.container, path, max_bytes)
            )
        except DaemonError as error:
            if error.status is not None and await self._life.is_running():
                return None
            raise await self._life.lost(error.text) from error

    async def _put(self, uploads: Sequence[Upload], empty: Sequence[str]) -> None:
        unmade = self._unmade
        made_at = await self._life.engine.call(
            lambda client: files.put(
                client, self._life.container, uploads, empty=empty, folders=unmade
            )
        )
        self._made.update(dict.fromkeys(self._absent.intersection(unmade), made_at))
        for upload in uploads:
            for folder in tuple(self._made):
                if files.may_reach(upload.target, folder):
                    del self._made[folder]
        self._unmade = ()

    async def _failed(
        self, error: DaemonError, uploads: Sequence[Upload], empty: Sequence[str]
    ) -> SandboxError:
        if error.status is None or not await self._life.is_running():
            return await self._life.lost(error.text)
        what = ", ".join([*empty, *(upload.target for upload in uploads)])
        return TransferFailed(
            f"cannot copy to {what} in {self._life.name}: {error.text}",
            blocked=files.is_blocked(error.text),
        )
