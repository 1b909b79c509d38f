"""The broker's jobs, with processes whose replies come when the test wants them to."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from pytest_harbor.sandboxes.local.broker import forks, jobs, processes, wire
from pytest_harbor.sandboxes.local.broker.loop import Loop
from pytest_harbor.sandboxes.local.broker.place import Place

READ = {"op": "read", "path": "/etc/passwd", "max_bytes": 1}


@pytest.fixture
def lines(monkeypatch):
    """The far end of every line, by the ID of the process that is said to hold it."""
    made: dict[int, socket.socket] = {}

    def fork(work, sandbox, keep=frozenset()):
        ours, theirs = wire.channel()
        process = subprocess.Popen(["sleep", "600"])
        started.append(process)
        made[process.pid] = theirs
        return forks.Fork(process.pid, ours)

    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(forks, "fork", fork)
    yield made
    for line in made.values():
        line.close()
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def place():
    life, other = wire.channel()
    with life, other:
        place = Place(life, 0)
        yield place
        if place.mover is not None:
            place.mover.line.close()


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def work(loop):
    proc = processes.open_proc()
    yield jobs.Jobs(loop, proc)
    os.close(proc)


def worker(lines):
    """The one that was asked last: what it was asked is read."""
    for pid, line in reversed(lines.items()):
        line.setblocking(False)
        try:
            if wire.receive(line) is not None:
                return pid
        except BlockingIOError:
            continue
    return None


def test_one_that_was_given_up_is_asked_no_more(lines, place, loop, work):
    mine, theirs = wire.channel()
    work.take(place, READ, theirs, [])
    first = worker(lines)
    mine.close()
    loop.turn(0)
    assert not loop.turn(0)  # nothing is due any more: it would spin
    wire.reply(lines[first], {"content": "too late"})
    loop.turn(0)
    mine, theirs = wire.channel()
    work.take(place, READ, theirs, [])
    second = worker(lines)
    assert second not in (None, first)
    wire.send(lines[second], {"content": "in time"})
    loop.turn(0)
    assert wire.receive(mine)[0] == {"content": "in time"}
    mine.close()


def test_one_that_replied_is_asked_again(lines, place, loop, work):
    for _ in range(2):
        mine, theirs = wire.channel()
        work.take(place, READ, theirs, [])
        pid = worker(lines)
        wire.send(lines[pid], {"content": "here"})
        loop.turn(0)
        assert wire.receive(mine)[0] == {"content": "here"}
        mine.close()
    assert list(lines) == [pid]
