"""The broker's loop: start sandboxes, fork what joins them, end them.

Every request brings a channel of its own, and the reply goes there. The channel of a
sandbox is its life line: the sandbox ends when the other end closes. When the socket to the
owner or the owner itself ends, everything ends.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_harbor.sandboxes.local.broker import (
    files,
    forks,
    kernel,
    launch,
    processes,
    wire,
)

READY = "ready"
HOLDER = "sleep"
_GIVE_UP_MS = 5000
_HOLDER_SECONDS = 0.5
_MAX_SAID_BYTES = 16 * 1024


@dataclass
class Place:
    """A sandbox, or (without bubblewrap) the container that we are in."""

    channel: socket.socket
    namespaces: int
    bwrap: int = 0
    said: int = -1
    """Pipe with what bubblewrap and the holder print until it is ready."""
    status: int = -1
    """Pipe with bubblewrap's JSON."""
    init_pid: int | None = None
    init_pidfd: int | None = None
    text: bytes = b""
    is_ready: bool = False
    is_stopping: bool = False
    jobs: set[int] = field(default_factory=set)
    runner: forks.Fork | None = None
    """Watches over commands, and has nothing to do right now."""
    mover: forks.Fork | None = None
    """Moves files, and has nothing to do right now."""

    @property
    def sandbox(self) -> forks.Sandbox:
        """What a process must know to work in it."""
        return forks.Sandbox(self.namespaces, self.init_pid, self.init_pidfd)


@dataclass
class Job:
    """A forked process that works in a place and replies on its channel."""

    channel: socket.socket
    place: str


class Broker:
    """State and loop of the broker process."""

    def __init__(self, owner: socket.socket, owner_pidfd: int) -> None:
        self._owner = owner
        self._owner_pidfd = owner_pidfd
        self._places: dict[str, Place] = {}
        self._jobs: dict[int, Job] = {}
        self._actions: dict[int, Callable[[], None]] = {}
        self._poll = select.poll()
        self._proc = processes.open_proc()
        self._running = True
        wake, woken = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self._watch(wake, select.POLLIN, self._reap)
        self._watch(owner.fileno(), select.POLLIN, self._serve)
        self._watch(owner_pidfd, select.POLLIN, self._quit)

    def run(self) -> None:
        """Serve until the owner is gone, then end everything."""
        while self._running:
            self._turn(None)
        self._forget(self._owner.fileno())
        self._forget(self._owner_pidfd)
        for place in list(self._places.values()):
            self._end_place(place)
        while self._places and self._turn(_GIVE_UP_MS):
            pass
        processes.kill_all(self._own_descendants)

    def _turn(self, timeout_ms: int | None) -> bool:
        ready = [
            (descriptor, self._actions[descriptor])
            for descriptor, _ in self._poll.poll(timeout_ms)
        ]
        for descriptor, action in ready:
            # An earlier action may have closed it, and a new one have the same number.
            if self._actions.get(descriptor) is action:
                action()
        return bool(ready)

    def _watch(self, descriptor: int, events: int, action: Callable[[], None]) -> None:
        self._actions[descriptor] = action
        self._poll.register(descriptor, events)

    def _forget(self, descriptor: int) -> None:
        if self._actions.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def _quit(self) -> None:
        self._running = False

    def _serve(self) -> None:
        received = wire.receive(self._owner)
        if received is None:
            self._quit()
            return
        message, descriptors = received
        channel = socket.socket(fileno=descriptors[0])
        if message["op"] == "start":
            self._start(message, channel)
        elif message["op"] == "settle":
            self._settle(message, channel)
        else:
            self._run_job(message, channel, descriptors[1:])

    # Places

    def _start(self, message: wire.Message, channel: socket.socket) -> None:
        argv: list[str] = message["argv"]
        try:
            launched = launch.launch(argv)
        except OSError as error:
            _reply(channel, {"error": f"{argv[0]}: {error.strerror}"})
            channel.close()
            return
        place = Place(
            channel,
            message["namespaces"],
            bwrap=launched.pid,
            said=launched.said,
            status=launched.status,
        )
        self._places[message["place"]] = place
        self._watch(place.said, select.POLLIN, lambda: self._hear(place))
        self._watch(channel.fileno(), select.POLLIN, lambda: self._end_place(place))

    def _hear(self, place: Place) -> None:
        data = os.read(place.said, 4096)
        place.text = (place.text + data)[-_MAX_SAID_BYTES:]
        *_, last, rest = f"\n{place.text.decode(errors='replace')}".split("\n")
        if not data:
            self._forget(place.said)
        if rest or place.is_ready or not last.startswith(READY):
            return  # a failed start is reported when bubblewrap is reaped
        first = os.read(place.status, 4096).decode().splitlines()[0]
        place.init_pid = int(json.loads(first)["child-pid"])
        place.init_pidfd = os.pidfd_open(place.init_pid)
        self._await_holder(place.init_pid)
        self._open(place, {"pid": place.init_pid, "tools": last.split()[1:]})

    def _open(self, place: Place, facts: wire.Message) -> None:
        """Say that it is there, and fork what will be asked for, before it is."""
        place.is_ready = True
        _reply(place.channel, facts)
        place.mover = self._fork_mover(place)
        place.runner = self._fork_runner(place)

    def _await_holder(self, pid: int) -> None:
        """Wait until PID 1 is the sleeping program, which needs no file any more."""
        deadline = time.monotonic() + _HOLDER_SECONDS
        while processes.name(self._proc, pid) != HOLDER:
            if time.monotonic() > deadline:
                return
            time.sleep(0.0002)

    def _settle(self, message: wire.Message, channel: socket.socket) -> None:
        """In-place mode: no namespaces, every process below the broker is its own."""
        place = Place(channel, 0)
        self._places[message["place"]] = place
        self._watch(channel.fileno(), select.POLLIN, lambda: self._end_place(place))
        self._open(place, {"pid": os.getpid()})

    def _end_place(self, place: Place) -> None:
        """Kill it; :meth:`_reap` says so on its channel when all of it is gone."""
        wire.receive(place.channel)
        self._forget(place.channel.fileno())
        place.is_stopping = True
        for job in place.jobs:
            processes.send(job, signal.SIGKILL)
        if place.bwrap == 0:
            processes.kill_all(self._own_descendants)
            self._reap()
        elif place.init_pid is not None:
            processes.send(place.init_pid, signal.SIGKILL)
        else:
            # With all that it has started: nothing of it is set to end by itself yet.
            processes.kill_all(lambda: self._below(place.bwrap))

    def _below(self, top: int) -> list[processes.Process]:
        now = processes.table(self._proc)
        found = [now[top]] if top in now else []
        return found + processes.descendants(now, top)

    def _own_descendants(self) -> list[processes.Process]:
        return processes.descendants(processes.table(self._proc), os.getpid())

    # Jobs

    def _run_job(
        self, message: wire.Message, channel: socket.socket, descriptors: list[int]
    ) -> None:
        place = self._places.get(message["place"])
        if place is None or not place.is_ready or place.is_stopping:
            _reply(channel, {"lost": "it has ended"})
            channel.close()
        elif message["op"] == "exec":
            handed = [channel.fileno(), *descriptors]
            pid = self._ask(self._take_runner, place, message, handed)
            self._jobs[pid] = Job(channel, message["place"])
        else:
            pid = self._ask(self._take_mover, place, message, descriptors)
            self._jobs[pid] = Job(channel, message["place"])
            # When nobody waits for the result any more, it need not go on.
            self._watch(
                channel.fileno(), 0, lambda: processes.send(pid, signal.SIGKILL)
            )
        for descriptor in descriptors:
            os.close(descriptor)

    def _ask(
        self,
        take: Callable[[Place], forks.Fork],
        place: Place,
        message: wire.Message,
        descriptors: list[int],
    ) -> int:
        """Give a request to a process that has time; returns its ID."""
        while True:
            worker = take(place)
            try:
                wire.send(worker.line, message, descriptors)
            except OSError:
                self._hang_up(worker)
                continue  # it was killed while it waited
            return worker.pid

    def _take_runner(self, place: Place) -> forks.Fork:
        runner, place.runner = place.runner, None
        return runner or self._fork_runner(place)

    def _take_mover(self, place: Place) -> forks.Fork:
        mover, place.mover = place.mover, None
        return mover or self._fork_mover(place)

    def _fork_runner(self, place: Place) -> forks.Fork:
        work = forks.run_commands(self._proc)
        runner = forks.fork(work, place.sandbox, frozenset({self._proc}))
        place.jobs.add(runner.pid)
        self._watch(
            runner.line.fileno(), select.POLLIN, lambda: self._ran(place, runner)
        )
        return runner

    def _fork_mover(self, place: Place) -> forks.Fork:
        mover = forks.fork(forks.move_files, place.sandbox)
        place.jobs.add(mover.pid)
        self._watch(
            mover.line.fileno(), select.POLLIN, lambda: self._moved(place, mover)
        )
        return mover

    def _moved(self, place: Place, mover: forks.Fork) -> None:
        """Pass a reply on; the process then has time for the next request."""
        received = wire.receive(mover.line)
        if received is None:  # it ended, which _reap reports
            self._hang_up(mover)
            return
        if job := self._jobs.pop(mover.pid, None):
            self._end_job(job, received[0])
        if place.mover is None and not place.is_stopping:
            place.mover = mover
        else:
            self._hang_up(mover)

    def _ran(self, place: Place, runner: forks.Fork) -> None:
        """A command is over; the process says itself how it went."""
        if wire.receive(runner.line) is None:  # it ended, which _reap reports
            self._hang_up(runner)
            return
        if job := self._jobs.pop(runner.pid, None):
            job.channel.close()
        if place.runner is None and not place.is_stopping:
            place.runner = runner
        else:
            self._hang_up(runner)

    def _hang_up(self, worker: forks.Fork | None) -> None:
        """End what waits on this line."""
        if worker is not None and worker.line.fileno() >= 0:
            self._forget(worker.line.fileno())
            worker.line.close()

    def _reap(self) -> None:
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if job := self._jobs.pop(pid, None):
                code = os.waitstatus_to_exitcode(status)
                self._end_job(job, {"lost": f"its process ended with {code}"})
            for key, place in list(self._places.items()):
                place.jobs.discard(pid)
                if place.bwrap == pid:
                    self._remove_place(key, place)
        for key, place in list(self._places.items()):
            if place.bwrap == 0 and place.is_stopping and not self._own_descendants():
                self._remove_place(key, place)

    def _end_job(self, job: Job, reply: wire.Message) -> None:
        self._forget(job.channel.fileno())
        _reply(job.channel, reply)
        job.channel.close()

    def _remove_place(self, key: str, place: Place) -> None:
        del self._places[key]
        place.is_stopping = True
        self._forget(place.channel.fileno())
        self._hang_up(place.runner)
        self._hang_up(place.mover)
        if place.bwrap:
            if not place.is_ready:
                processes.kill_all(self._adopted)
                self._hear_the_rest(place)
            self._forget(place.said)
            os.close(place.said)
            os.close(place.status)
        if place.init_pidfd is not None:
            os.close(place.init_pidfd)
        text = place.text.decode(errors="replace").strip()
        _reply(place.channel, {"ended": True, "error": text})
        place.channel.close()

    def _adopted(self) -> list[processes.Process]:
        known = {place.bwrap for place in self._places.values()}
        return launch.adopted(self._proc, os.getpid(), known)

    def _hear_the_rest(self, place: Place) -> None:
        os.set_blocking(place.said, False)
        try:
            while data := os.read(place.said, 4096):
                place.text = (place.text + data)[-_MAX_SAID_BYTES:]
        except BlockingIOError:
            return


def _reply(channel: socket.socket, message: wire.Message) -> None:
    try:
        wire.send(channel, message)
    except OSError:
        return


def main() -> None:
    """Run with a socket and a pidfd of the owner, and the owner's temporary folder.

    The folder is removed at the end, so that a killed owner leaves none.
    """
    owner, owner_pidfd = int(sys.argv[-3]), int(sys.argv[-2])
    folder = sys.argv[-1]
    # Ctrl-C goes to the whole foreground group; the owner decides what ends when.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for descriptor in (owner, owner_pidfd):
        os.set_inheritable(descriptor, False)
    kernel.rename_process(launch.NAME)
    kernel.become_subreaper()
    kernel.hide_memory()
    # What every fork shares is never looked at again, so it need not be copied.
    gc.collect()
    gc.freeze()
    gc.disable()
    Broker(socket.socket(fileno=owner), owner_pidfd).run()
    parent, name = folder.rsplit("/", 1)
    files.remove(os.open(parent, os.O_RDONLY | os.O_DIRECTORY), name)
