"""Installations are made once on a machine: who waits, who fails, what is swept."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from pytest_harbor.errors import InstallFailed, SandboxStartFailed
from pytest_harbor.sandboxes.install import Installs
from pytest_harbor.sandboxes.install_script import InstallScript
from pytest_harbor.sandboxes.local.installs import LocalInstalls
from pytest_harbor.sandboxes.owner import Owner


class Maker:
    """Makes something, or fails, and counts."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.made: list[int] = []
        self.tries = 0

    async def find(self) -> int | None:
        return self.made[-1] if self.made else None

    async def make(self) -> int:
        self.tries += 1
        await anyio.lowlevel.checkpoint()
        if self.fails:
            raise InstallFailed(f"failure {self.tries}")
        self.made.append(self.tries)
        return self.tries


@pytest.fixture
def key(tmp_path, monkeypatch):
    """A key whose locks are this test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return "test"


def test_the_first_one_makes_it_for_all(key):
    maker = Maker()

    async def main():
        others = [Installs() for _ in range(3)]  # of as many processes
        results = []

        async def ask(installs):
            results.append(await installs.once(key, maker.find, maker.make, what="it"))

        async with anyio.create_task_group() as tasks:
            for installs in others:
                tasks.start_soon(ask, installs)
        return results

    assert anyio.run(main) == [1, 1, 1]
    assert maker.tries == 1


def test_those_who_wait_share_a_failure(key):
    maker = Maker(fails=True)
    texts, told = [], []

    async def ask(installs):
        try:
            await installs.once(
                key, maker.find, maker.make, what="it", tell=told.append
            )
        except InstallFailed as error:
            texts.append(str(error))

    async def main():
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask, Installs())

    anyio.run(main)
    assert texts == ["failure 1"] * 3
    assert told.count("installing it") == 1
    assert told.count("waiting for another process that installs it") == 2


def test_a_third_time_is_not_waited_for(key):
    maker = Maker(fails=True)

    installs = Installs()
    ask = partial(installs.once, key, maker.find, maker.make, what="it")
    for text in ("failure 1", *["failure 2"] * 3):
        with pytest.raises(InstallFailed, match=text):
            anyio.run(ask)
    assert maker.tries == 2


def test_force_makes_it_anew_once_per_session(key):
    maker = Maker()

    async def main():
        await Installs().once(key, maker.find, maker.make, what="it")
        installs = Installs()
        ask = partial(installs.once, key, maker.find, maker.make, what="it", force=True)
        return [await ask(), await ask()]

    assert anyio.run(main) == [2, 2]


INSTALL = InstallScript("tool", "true")


async def fill(folder: Path) -> None:
    (folder / "made").write_text("x")


def test_the_cache_can_be_anew_beside_sandboxes_that_use_it(key, tmp_path):
    installs = LocalInstalls(tmp_path / "cache")

    async def main():
        first = await installs.ready(INSTALL, fill, None, force=False)
        inode = (first / "made").stat().st_ino
        again = LocalInstalls(tmp_path / "cache")
        second = await again.ready(INSTALL, fill, None, force=True)
        assert second == first
        assert (second / "made").stat().st_ino != inode

    anyio.run(main)
    # What was replaced is still there for whoever has it mounted.
    [old] = (tmp_path / "cache").glob("*.old")
    assert (old / "files" / "made").exists()
    assert installs.sweep() == 0


def test_what_dead_owners_left_half_made_is_swept(tmp_path):
    dead = subprocess.run(
        [sys.executable, "-c", f"{OWNER}print(Owner.current())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    for name, owner in (("one", dead), ("two", str(Owner.current()))):
        folder = tmp_path / f"{name}.making"
        (folder / "files").mkdir(parents=True)
        (folder / "owner").write_text(owner)
    (tmp_path / "finished").mkdir()
    assert LocalInstalls(tmp_path).sweep() == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "finished",
        "two.making",
    ]


OWNER = "from pytest_harbor.sandboxes.owner import Owner; "


def test_a_cache_that_cannot_be_written_is_told(key, tmp_path):
    (tmp_path / "file").write_text("")
    installs = LocalInstalls(tmp_path / "file" / "cache")
    with pytest.raises(
        SandboxStartFailed, match=r"cannot write .*where installed agents are kept"
    ):
        anyio.run(lambda: installs.ready(INSTALL, fill, None, force=False))
