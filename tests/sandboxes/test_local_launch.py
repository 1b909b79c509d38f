"""The start of a sandbox that is cut short: nothing of bubblewrap may be left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from pytest_harbor.errors import SandboxLost
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local import shelf as module
from pytest_harbor.sandboxes.local.broker import processes
from pytest_harbor.sandboxes.local.client import receive
from pytest_harbor.sandboxes.local.provider import LocalProvider

SPEC = EnvironmentSpec(network="no-network")


def _below(pid):
    """Names of the living processes below one, by ID."""
    proc = processes.open_proc()
    try:
        found = processes.descendants(processes.table(proc), pid)
        return {
            one.pid: processes.name(proc, one.pid) for one in found if one.state != "Z"
        }
    finally:
        os.close(proc)


def _with_mark(mark):
    """Living processes of bubblewrap whose command line has ``mark``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            is_bwrap = (entry / "comm").read_text() == "bwrap\n"
            if is_bwrap and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def _provider():
    provider = LocalProvider()
    found = await provider.probe()
    if not found.available:
        pytest.skip(found.reason)
    return provider


def test_start_that_is_cancelled_leaves_no_process():
    chance = random.Random(7)

    async def main():
        provider = await _provider()
        ready = provider._base
        broker = ready.broker._process.pid
        cut_short = 0
        try:
            for _ in range(30):
                with anyio.move_on_after(chance.uniform(0.0005, 0.03)) as scope:
                    box = await provider.start(SPEC, name="cancelled", labels={})
                    await box.stop()
                cut_short += scope.cancelled_caught
            with anyio.fail_after(20):
                while left := _below(broker):  # noqa: ASYNC110  # nobody tells
                    await anyio.sleep(0.005)
        finally:
            await provider.aclose()
        return cut_short, left

    cut_short, left = anyio.run(main)
    assert cut_short > 10
    assert left == {}


KILLED = """
import anyio, os, signal, sys, time
from pytest_harbor.errors import SandboxLost
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.provider import LocalProvider

async def main():
    provider = LocalProvider()
    await provider.probe()
    ready = provider._base
    print(ready.folder, flush=True)
    async def start():
        await provider.start(EnvironmentSpec(network="no-network"), name="t", labels={})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        await anyio.sleep(float(sys.argv[1]))
        os.kill(ready.broker._process.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

anyio.run(main)
"""


@pytest.mark.slow
def test_broker_killed_during_starts_leaves_nothing_after_a_sweep():
    anyio.run(_check_available)
    chance = random.Random(11)
    folders = []
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(chance.uniform(0.001, 0.01))],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        folders.append(done.stdout.strip())
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        anyio.run(LocalProvider().sweep)
        if not any(_with_mark(folder) for folder in folders):
            break
        time.sleep(0.01)
    assert not any(_with_mark(folder) for folder in folders)
    assert not any(Path(folder).exists() for folder in folders)


async def _check_available():
    await (await _provider()).aclose()


ORPHAN = """
import os, sys
if os.fork() == 0:
    os.setsid()
    os.execv(sys.argv[1], ["bwrap", "-c", "echo ready; read forever; :", sys.argv[2]])
"""


@pytest.fixture
def start_bwrap(tmp_path):
    """Start something called bwrap, with a mark in its command line."""
    program = tmp_path / "bwrap"
    program.symlink_to("/bin/sh")
    reader, writer = os.pipe()

    def start(mark, *, orphan):
        command = [str(program), "-c", "echo ready; read forever; :", mark]
        if orphan:
            command = [sys.executable, "-c", ORPHAN, str(program), mark]
        process = subprocess.Popen(
            command, stdin=reader, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        process.stdout.close()
        if orphan:
            process.wait()
        started.append(process)
        (pid,) = set(_with_mark(mark)) - set(found)
        found.append(pid)
        return pid

    started, found = [], []
    yield start
    os.close(writer)  # they read to the end of it, and are gone
    os.close(reader)
    for process in started:
        process.wait()


def test_sweep_kills_what_a_dead_broker_left(start_bwrap, monkeypatch):
    # A prefix that the sweeps of no other test look for.
    monkeypatch.setattr(module, "FOLDER_PREFIX", "swept-here-")
    mark = f"/swept-here-{os.getpid()}-test/etc"
    orphan = start_bwrap(mark, orphan=True)
    strange = start_bwrap(mark.replace("swept-here-", "other-"), orphan=True)
    assert module.sweep_processes() == 1
    deadline = time.monotonic() + 10
    while orphan in _with_mark(mark) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert orphan not in _with_mark(mark)
    assert strange in _with_mark("other-")


@pytest.mark.parametrize("what", ["comm", "stat"])
def test_a_process_may_end_while_it_is_looked_at(tmp_path, what):
    (tmp_path / "7" / what).mkdir(parents=True)  # can be opened, and not be read
    proc = os.open(tmp_path, os.O_RDONLY)
    try:
        assert processes.name(proc, 7) == ""
        assert processes.look(proc, 7) is None
        assert processes.table(proc) == {}
    finally:
        os.close(proc)


def test_sweep_spares_what_a_broker_keeps():
    async def main():
        provider = await _provider()
        try:
            box = await provider.start(SPEC, name="alive", labels={})
            await LocalProvider().sweep()
            return (await box.exec("echo alive")).stdout
        finally:
            await provider.aclose()

    assert anyio.run(main) == "alive\n"


def test_program_that_cannot_be_started_is_named():
    async def main():
        provider = await _provider()
        try:
            request = {"op": "start", "place": "x", "namespaces": 0}
            channel = provider._base.broker.request({**request, "argv": ["/no/such"]})
            with channel:
                return await receive(channel)
        finally:
            await provider.aclose()

    reply = anyio.run(main)
    assert reply["error"] == "/no/such: No such file or directory"


def test_a_broker_that_was_killed_costs_its_sandboxes_and_no_later_one():
    async def main():
        provider = await _provider()
        try:
            lost = await provider.start(SPEC, name="lost", labels={})
            broker = provider._base.broker._process
            broker.kill()
            broker.wait()
            with pytest.raises(SandboxLost):
                await lost.exec("sleep 60")
            sandbox = await provider.start(SPEC, name="next", labels={})
            result = await sandbox.exec("echo alive")
            await sandbox.stop()
            await lost.stop()
            return result
        finally:
            await provider.aclose()

    assert anyio.run(main).stdout == "alive\n"
