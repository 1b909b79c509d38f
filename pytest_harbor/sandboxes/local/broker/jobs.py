"""The broker's jobs: commands and transfers, given to processes that wait for them."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Callable

from pytest_harbor.sandboxes.local.broker import forks, processes, wire
from pytest_harbor.sandboxes.local.broker.loop import Loop
from pytest_harbor.sandboxes.local.broker.place import Place


class Jobs:
    """All jobs of a broker. ``proc`` is the host's ``/proc``.

    A process that has done its job waits in its place for the next one.
    """

    def __init__(self, loop: Loop, proc: int) -> None:
        self._loop = loop
        self._proc = proc
        self._channels: dict[int, socket.socket] = {}
        """Of each process at work, where its reply goes."""

    def expect(self, place: Place) -> None:
        """Fork what will be asked for, before it is."""
        place.mover = self._fork_mover(place)
        place.runner = self._fork_runner(place)

    def take(
        self,
        place: Place,
        message: wire.Message,
        channel: socket.socket,
        descriptors: list[int],
    ) -> None:
        """Have a request done; the reply goes to ``channel``."""
        if message["op"] == "exec":
            handed = [channel.fileno(), *descriptors]
            runner = self._ask(self._take_runner, place, message, handed)
            self._channels[runner.pid] = channel
        else:
            mover = self._ask(self._take_mover, place, message, descriptors)
            self._channels[mover.pid] = channel
            self._loop.watch(channel.fileno(), 0, lambda: self._give_up(mover))

    def died(self, pid: int, exit_code: int) -> None:
        """A process was reaped, one of ours or not; who waits for it hears of it."""
        if channel := self._channels.pop(pid, None):
            self._end(channel, {"lost": f"its process ended with {exit_code}"})

    def leave(self, place: Place) -> None:
        """Nothing more will be asked for in it."""
        self._hang_up(place.runner)
        self._hang_up(place.mover)

    def _ask(
        self,
        take: Callable[[Place], forks.Fork],
        place: Place,
        message: wire.Message,
        descriptors: list[int],
    ) -> forks.Fork:
        """Give a request to a process that has time; returns which one."""
        while True:
            worker = take(place)
            try:
                wire.send(worker.line, message, descriptors)
            except OSError:
                self._hang_up(worker)
                continue  # it was killed while it waited
            return worker

    def _take_runner(self, place: Place) -> forks.Fork:
        runner, place.runner = place.runner, None
        return runner or self._fork_runner(place)

    def _take_mover(self, place: Place) -> forks.Fork:
        mover, place.mover = place.mover, None
        return mover or self._fork_mover(place)

    def _fork_runner(self, place: Place) -> forks.Fork:
        work = forks.run_commands(self._proc)
        runner = forks.fork(work, place.sandbox, frozenset({self._proc}))
        place.forked.add(runner.pid)
        self._loop.watch(
            runner.line.fileno(), select.POLLIN, lambda: self._ran(place, runner)
        )
        return runner

    def _fork_mover(self, place: Place) -> forks.Fork:
        mover = forks.fork(forks.move_files, place.sandbox)
        place.forked.add(mover.pid)
        self._loop.watch(
            mover.line.fileno(), select.POLLIN, lambda: self._moved(place, mover)
        )
        return mover

    def _moved(self, place: Place, mover: forks.Fork) -> None:
        """Pass a reply on; the process then has time for the next request."""
        received = wire.receive(mover.line)
        if received is None:  # it ended, as will be reported
            self._hang_up(mover)
            return
        if channel := self._channels.pop(mover.pid, None):
            self._end(channel, received[0])
        if place.mover is None and not place.is_stopping:
            place.mover = mover
        else:
            self._hang_up(mover)

    def _give_up(self, mover: forks.Fork) -> None:
        """Nobody waits for the result any more: it need not go on."""
        processes.send(mover.pid, signal.SIGKILL)
        channel = self._channels.pop(mover.pid)
        self._loop.forget(channel.fileno())
        channel.close()
        # It may still have replied, and has no time for a next request all the same.
        self._hang_up(mover)

    def _ran(self, place: Place, runner: forks.Fork) -> None:
        """A command is over; the process says itself how it went."""
        if wire.receive(runner.line) is None:  # it ended, as will be reported
            self._hang_up(runner)
            return
        if channel := self._channels.pop(runner.pid, None):
            channel.close()
        if place.runner is None and not place.is_stopping:
            place.runner = runner
        else:
            self._hang_up(runner)

    def _hang_up(self, worker: forks.Fork | None) -> None:
        """End what waits on this line."""
        if worker is not None and worker.line.fileno() >= 0:
            self._loop.forget(worker.line.fileno())
            worker.line.close()

    def _end(self, channel: socket.socket, reply: wire.Message) -> None:
        self._loop.forget(channel.fileno())
        wire.reply(channel, reply)
        channel.close()
