"""A local command that is killed while somebody talks to it."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest

from pytest_harbor.sandboxes.local.piped import LocalPipedProcess, Pipes

pytestmark = pytest.mark.anyio


class Dying:
    """A process that is dead as soon as somebody wants it to be."""

    async def kill(self) -> None:
        return


@pytest.fixture
def process() -> Iterator[LocalPipedProcess]:
    pipes = Pipes.open()
    with pipes.of_command():  # neither reads nor writes
        yield LocalPipedProcess(Dying(), pipes)  # type: ignore[arg-type]


@pytest.mark.parametrize("turns", range(4))
async def test_whoever_reads_meets_the_end(process, turns):
    heard = []

    async def receive():
        heard.append(await process.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        await process.kill()
    assert heard == [b""]


@pytest.mark.parametrize("turns", range(4))
async def test_whoever_writes_meets_a_broken_pipe(process, turns):
    async def send():
        with pytest.raises(BrokenPipeError):
            await process.send(b"x" * 1024 * 1024)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        await process.kill()
