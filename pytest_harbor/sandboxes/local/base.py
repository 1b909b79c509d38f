"""What the sandboxes of one local provider start from: folder, broker and userland."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from pytest_harbor.sandboxes.local import probing, shelf, userland
from pytest_harbor.sandboxes.local.client import BrokerClient
from pytest_harbor.sandboxes.local.etc import copy_etc


@dataclass(frozen=True)
class Base:
    """Made on a provider's first use, and anew when its broker was killed."""

    folder: Path
    broker: BrokerClient
    bwrap: probing.Bwrap | None
    land: userland.Userland | None
    """``None`` in in-place mode."""

    @classmethod
    def make(cls, bwrap: probing.Bwrap | None) -> Base:
        """Start a broker and make a userland for ``bwrap``; ``None`` means in-place mode."""
        folder = shelf.new_folder()
        broker = BrokerClient(folder)
        broker.start()  # it comes up while the userland is made
        land = None if bwrap is None else _make_userland(bwrap, folder)
        return cls(folder, broker, bwrap, land)

    def close(self) -> None:
        """End the broker and with it all sandboxes; remove the folder."""
        self.broker.close()
        shelf.remove_folder(self.folder)

    async def aclose(self) -> None:
        """As :meth:`close`, without blocking."""
        await self.broker.aclose()
        await anyio.to_thread.run_sync(shelf.remove_folder, self.folder)


def _make_userland(bwrap: probing.Bwrap, folder: Path) -> userland.Userland:
    copy_etc(Path("/etc"), folder / "etc")
    rootless = os.geteuid() != 0
    skeleton = folder / "over" if rootless else None
    if skeleton is not None:
        userland.make_skeleton(skeleton)
    return userland.Userland(
        bwrap=str(bwrap.path),
        etc=folder / "etc",
        skeleton=skeleton,
        rootless=rootless,
        prefix=userland.interpreter_prefix(),
        has_env_signals=userland.env_ignores_signals(),
    )
