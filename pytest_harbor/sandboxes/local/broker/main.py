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
from typing import NoReturn

from pytest_harbor.sandboxes.local.broker import (
    command,
    files,
    joined,
    kernel,
    processes,
    wire,
)

READY = "ready"
HOLDER = "sleep"
NAME = "harbor-broker"
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
    spare: Spare | None = None


@dataclass
class Spare:
    """A process that has joined a sandbox and waits for the next command.

    Forking and joining take half the time of a short command; this way they are done
    while nobody waits.
    """

    pid: int
    line: socket.socket


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
        said, saying = os.pipe2(os.O_CLOEXEC)
        status, telling = os.pipe2(os.O_CLOEXEC)
        argv: list[str] = message["argv"]
        argv = [argv[0], "--json-status-fd", "3", *argv[1:]]
        actions = [
            (os.POSIX_SPAWN_DUP2, saying, 1),
            (os.POSIX_SPAWN_DUP2, saying, 2),
            (os.POSIX_SPAWN_DUP2, telling, 3),
        ]
        defaults = [signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ]
        place = Place(channel, message["namespaces"], said=said, status=status)
        try:
            place.bwrap = os.posix_spawn(
                argv[0], argv, {}, file_actions=actions, setsigdef=defaults
            )
        except OSError as error:
            _reply(channel, {"error": f"{argv[0]}: {error.strerror}"})
            channel.close()
            os.close(said)
            os.close(status)
            return
        finally:
            os.close(saying)
            os.close(telling)
        self._places[message["place"]] = place
        self._watch(said, select.POLLIN, lambda: self._hear(place))
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
        place.is_ready = True
        _reply(place.channel, {"pid": place.init_pid, "tools": last.split()[1:]})
        self._make_spare(place)

    def _await_holder(self, pid: int) -> None:
        """Wait until PID 1 is the sleeping program, which needs no file any more."""
        deadline = time.monotonic() + _HOLDER_SECONDS
        while processes.name(self._proc, pid) != HOLDER:
            if time.monotonic() > deadline:
                return
            time.sleep(0.0002)

    def _settle(self, message: wire.Message, channel: socket.socket) -> None:
        """In-place mode: no namespaces, every process below the broker is its own."""
        place = Place(channel, 0, is_ready=True)
        self._places[message["place"]] = place
        self._watch(channel.fileno(), select.POLLIN, lambda: self._end_place(place))
        _reply(channel, {"pid": os.getpid()})

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
            processes.send(place.bwrap, signal.SIGKILL)

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
            pid = self._use_spare(place, message, channel, descriptors)
            self._jobs[pid] = Job(channel, message["place"])
            self._make_spare(place)
        else:
            pid = os.fork()
            if pid == 0:
                _work_on_files(message, place, channel, descriptors)
            self._jobs[pid] = Job(channel, message["place"])
            place.jobs.add(pid)
            # When nobody waits for the result any more, it need not go on.
            self._watch(
                channel.fileno(), 0, lambda: processes.send(pid, signal.SIGKILL)
            )
        for descriptor in descriptors:
            os.close(descriptor)

    def _use_spare(
        self,
        place: Place,
        message: wire.Message,
        channel: socket.socket,
        descriptors: list[int],
    ) -> int:
        while True:
            spare = place.spare or self._make_spare(place)
            place.spare = None
            try:
                with spare.line:
                    wire.send(spare.line, message, [channel.fileno(), *descriptors])
            except OSError:
                continue  # it was killed while it waited
            return spare.pid

    def _make_spare(self, place: Place) -> Spare:
        ours, theirs = wire.channel()
        pid = os.fork()
        if pid == 0:
            self._wait_for_command(place, theirs)
        theirs.close()
        place.jobs.add(pid)
        place.spare = Spare(pid, ours)
        return place.spare

    def _wait_for_command(self, place: Place, line: socket.socket) -> NoReturn:
        channel: socket.socket | None = None
        try:
            keep = {0, 1, 2, line.fileno(), self._proc}
            if place.init_pidfd is not None:
                keep.add(place.init_pidfd)
            command.prepare_child(keep)
            problem = _enter(place, place.namespaces)
            received = wire.receive(line)
            line.close()
            if received is not None:
                message, descriptors = received
                channel = socket.socket(fileno=descriptors[0])
                watcher = command.Watcher(
                    channel, self._proc, place.init_pid, place.init_pidfd
                )
                if problem:
                    _reply(channel, {"lost": problem})
                else:
                    watcher.run(command.Command.parse(message), descriptors[1:])
        except BaseException as error:  # noqa: BLE001  # a fork must never return
            if channel is not None:
                _reply(channel, {"lost": f"{type(error).__name__}: {error}"})
        finally:
            os._exit(0)

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
                self._end_job(pid, job, status)
                continue
            for key, place in list(self._places.items()):
                place.jobs.discard(pid)
                if place.bwrap == pid:
                    self._remove_place(key, place)
        for key, place in list(self._places.items()):
            if place.bwrap == 0 and place.is_stopping and not self._own_descendants():
                self._remove_place(key, place)

    def _end_job(self, pid: int, job: Job, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self._forget(job.channel.fileno())
        _reply(job.channel, {"lost": f"its process ended with {code}"})
        job.channel.close()
        if place := self._places.get(job.place):
            place.jobs.discard(pid)

    def _remove_place(self, key: str, place: Place) -> None:
        del self._places[key]
        self._forget(place.channel.fileno())
        if place.spare is not None:
            place.spare.line.close()
        if place.bwrap:
            if not place.is_ready:
                self._hear_the_rest(place)
            self._forget(place.said)
            os.close(place.said)
            os.close(place.status)
        if place.init_pidfd is not None:
            os.close(place.init_pidfd)
        text = place.text.decode(errors="replace").strip()
        _reply(place.channel, {"ended": True, "error": text})
        place.channel.close()

    def _hear_the_rest(self, place: Place) -> None:
        os.set_blocking(place.said, False)
        try:
            while data := os.read(place.said, 4096):
                place.text = (place.text + data)[-_MAX_SAID_BYTES:]
        except BlockingIOError:
            return


def _enter(place: Place, namespaces: int) -> str:
    """Join a sandbox; returns why that failed, if it did."""
    try:
        joined.enter(place.init_pidfd, namespaces)
    except OSError as error:
        return str(error)
    return ""


def _work_on_files(
    message: wire.Message,
    place: Place,
    channel: socket.socket,
    descriptors: list[int],
) -> NoReturn:
    try:
        keep = {0, 1, 2, channel.fileno(), *descriptors}
        if place.init_pidfd is not None:
            keep.add(place.init_pidfd)
        command.prepare_child(keep)
        # No PID namespace: the sandbox's /proc then has no entry for this process.
        problem = _enter(
            place, place.namespaces & (kernel.CLONE_NEWNS | kernel.CLONE_NEWUSER)
        )
        reply = {"lost": problem} if problem else _move_files(message, descriptors)
        wire.send(channel, reply)
    except BaseException as error:  # noqa: BLE001  # a fork must never return
        _reply(channel, {"lost": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def _move_files(message: wire.Message, descriptors: list[int]) -> wire.Message:
    if message["op"] == "put":
        empty = [(path, mode) for path, mode in message["empty"]]
        return files.put(descriptors[0], message["folders"], empty)
    if message["op"] == "read":
        return files.read(message["path"], descriptors[0], message["max_bytes"])
    if message["op"] == "get":
        results = [
            files.get(
                wanted["path"],
                descriptor,
                wanted["exclude"],
                message["max_bytes"],
                message["max_files"],
            )
            for wanted, descriptor in zip(message["paths"], descriptors, strict=True)
        ]
        return {"results": results}
    raise ValueError(f"unknown request {message['op']!r}")


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
    kernel.rename_process(NAME)
    kernel.become_subreaper()
    kernel.hide_memory()
    # What every fork shares is never looked at again, so it need not be copied.
    gc.collect()
    gc.freeze()
    gc.disable()
    Broker(socket.socket(fileno=owner), owner_pidfd).run()
    parent, name = folder.rsplit("/", 1)
    files.remove(os.open(parent, os.O_RDONLY | os.O_DIRECTORY), name)
