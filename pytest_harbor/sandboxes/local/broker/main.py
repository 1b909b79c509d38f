"""The broker: start sandboxes, have work done in them, end them.

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

from pytest_harbor.sandboxes.local.broker import (
    files,
    kernel,
    launch,
    processes,
    wire,
)
from pytest_harbor.sandboxes.local.broker.jobs import Jobs
from pytest_harbor.sandboxes.local.broker.loop import Loop
from pytest_harbor.sandboxes.local.broker.place import Place

READY = "ready"
HOLDER = "sleep"
_GIVE_UP_MS = 5000
_HOLDER_SECONDS = 0.5
_MAX_SAID_BYTES = 16 * 1024


class Broker:
    """The broker process: its sandboxes, and what is asked of it."""

    def __init__(self, owner: socket.socket, owner_pidfd: int) -> None:
        self._owner = owner
        self._owner_pidfd = owner_pidfd
        self._places: dict[str, Place] = {}
        self._loop = Loop()
        self._proc = processes.open_proc()
        self._jobs = Jobs(self._loop, self._proc)
        self._running = True
        wake, woken = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self._loop.watch(wake, select.POLLIN, self._reap)
        self._loop.watch(owner.fileno(), select.POLLIN, self._serve)
        self._loop.watch(owner_pidfd, select.POLLIN, self._quit)

    def run(self) -> None:
        """Serve until the owner is gone, then end everything."""
        while self._running:
            self._loop.turn(None)
        self._loop.forget(self._owner.fileno())
        self._loop.forget(self._owner_pidfd)
        for place in list(self._places.values()):
            self._end_place(place)
        while self._places and self._loop.turn(_GIVE_UP_MS):
            pass
        processes.kill_all(self._own_descendants)

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
            self._work(message, channel, descriptors[1:])

    def _work(
        self, message: wire.Message, channel: socket.socket, descriptors: list[int]
    ) -> None:
        place = self._places.get(message["place"])
        if place is None or not place.is_ready or place.is_stopping:
            wire.reply(channel, {"lost": "it has ended"})
            channel.close()
        else:
            self._jobs.take(place, message, channel, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _start(self, message: wire.Message, channel: socket.socket) -> None:
        argv: list[str] = message["argv"]
        try:
            launched = launch.launch(argv)
        except OSError as error:
            wire.reply(channel, {"error": f"{argv[0]}: {error.strerror}"})
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
        self._loop.watch(place.said, select.POLLIN, lambda: self._hear(place))
        self._loop.watch(
            channel.fileno(), select.POLLIN, lambda: self._end_place(place)
        )

    def _hear(self, place: Place) -> None:
        data = os.read(place.said, 4096)
        place.text = (place.text + data)[-_MAX_SAID_BYTES:]
        *_, last, rest = f"\n{place.text.decode(errors='replace')}".split("\n")
        if not data:
            self._loop.forget(place.said)
        if rest or place.is_ready or not last.startswith(READY):
            return  # a failed start is reported when bubblewrap is reaped
        first = os.read(place.status, 4096).decode().splitlines()[0]
        place.init_pid = int(json.loads(first)["child-pid"])
        place.init_pidfd = os.pidfd_open(place.init_pid)
        self._await_holder(place.init_pid)
        self._open(place, {"pid": place.init_pid, "tools": last.split()[1:]})

    def _open(self, place: Place, facts: wire.Message) -> None:
        """Say that it is there."""
        place.is_ready = True
        wire.reply(place.channel, facts)
        self._jobs.expect(place)

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
        self._loop.watch(
            channel.fileno(), select.POLLIN, lambda: self._end_place(place)
        )
        self._open(place, {"pid": os.getpid()})

    def _end_place(self, place: Place) -> None:
        """Kill it; :meth:`_reap` says so on its channel when all of it is gone."""
        wire.receive(place.channel)
        self._loop.forget(place.channel.fileno())
        place.is_stopping = True
        for pid in place.forked:
            processes.send(pid, signal.SIGKILL)
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
            self._jobs.died(pid, os.waitstatus_to_exitcode(status))
            for key, place in list(self._places.items()):
                place.forked.discard(pid)
                if place.bwrap == pid:
                    self._remove_place(key, place)
        for key, place in list(self._places.items()):
            if place.bwrap == 0 and place.is_stopping and not self._own_descendants():
                self._remove_place(key, place)

    def _remove_place(self, key: str, place: Place) -> None:
        del self._places[key]
        place.is_stopping = True
        self._loop.forget(place.channel.fileno())
        self._jobs.leave(place)
        if place.bwrap:
            if not place.is_ready:
                processes.kill_all(self._adopted)
                self._hear_the_rest(place)
            self._loop.forget(place.said)
            os.close(place.said)
            os.close(place.status)
        if place.init_pidfd is not None:
            os.close(place.init_pidfd)
        text = place.text.decode(errors="replace").strip()
        wire.reply(place.channel, {"ended": True, "error": text})
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
