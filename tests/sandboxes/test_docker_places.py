"""A limit for all processes of this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile

import anyio
import pytest

from pytest_harbor.sandboxes import machine

pytestmark = pytest.mark.anyio

HOLDER = """
import anyio, sys
from pytest_harbor.sandboxes.machine import place
async def main():
    async with place("test", 2):
        print("held", flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    tempfile.tempdir = None


async def test_places_are_those_of_all_processes_and_die_with_them():
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        entered = []
        async with machine.place("test", 2), anyio.create_task_group() as tasks:

            async def third() -> None:
                async with machine.place("test", 2):
                    entered.append("third")

            tasks.start_soon(third)
            await anyio.sleep(0.2)
            assert entered == []
            holder.send_signal(signal.SIGKILL)
            with anyio.fail_after(30):
                while not entered:  # noqa: ASYNC110
                    await anyio.sleep(0.01)


async def test_a_place_that_nobody_gives_back_is_waited_for_only_so_long(monkeypatch):
    monkeypatch.setattr(machine, "_PATIENCE_SECONDS", 0.1)
    async with machine.place("test", 1), machine.place("test", 1):
        pass
    async with machine.place("test", 1):  # and it was given back once
        pass
