"""One command in a sandbox: watcher, supervisor, command.

The *watcher* stays in the host's PID namespace, where the agent cannot see it: it holds
the channel to the provider, the clock and the view of all processes. The *supervisor* is
inside and takes in every orphan of the command, so that the tree stays together whatever it
forks. When the command ends, the supervisor reports and ends as well; what it leaves
running then belongs to PID 1 and lives on.
"""

from __future__ import annotations

import array
import fcntl
import itertools
import os
import select
import signal
import socket
import subprocess
import termios
import time
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from pytest_harbor.sandboxes.local.broker import joined, kernel, processes, wire
from pytest_harbor.sandboxes.output import CappedOutput

NOT_FOUND = 127
NOT_EXECUTABLE = 126
KILLED = 128 + signal.SIGKILL
_STOP_SECONDS = 1.0
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Command:
    """What to run. ``timeout_seconds`` is counted from the start of the command.

    ``announce`` asks for a message as soon as the command was started. ``piped``: the
    second descriptor is standard output itself.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    user: str | int | None
    timeout_seconds: float | None
    announce: bool
    piped: bool

    @classmethod
    def parse(cls, message: wire.Message) -> Command:
        """Read a request of the provider."""
        return cls(
            message["argv"],
            message["env"],
            message["cwd"],
            message["user"],
            message["timeout"],
            message["announce"],
            message["piped"],
        )


class Output:
    """Both streams of a command: kept in part, and written to a log as they come.

    The command only gets pipes: no descriptor of a host file enters the sandbox. ``logs``
    are one for both streams, one for each, or none.
    """

    def __init__(self, logs: list[int]) -> None:
        files = [os.fdopen(log, "ab") for log in logs]
        self._logs: dict[int, BinaryIO] = {}
        self.streams: dict[int, CappedOutput] = {}
        self.writers: list[int] = []
        for number in range(2):
            reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            os.set_blocking(writer, True)
            # Other users than ours may open /dev/stdout again.
            os.fchmod(writer, 0o666)
            log = files[min(number, len(files) - 1)] if files else None
            if log is not None:
                self._logs[reader] = log
            self.streams[reader] = CappedOutput(log=log)
            self.writers.append(writer)

    def read(self, descriptor: int) -> bool:
        """Take what is there; False at the end of the stream."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        try:
            self.streams[descriptor].write(data)
            if descriptor in self._logs:
                self._logs[descriptor].flush()
        except OSError as error:
            os.write(2, f"cannot write the log: {error.strerror}\n".encode())
            self._logs.pop(descriptor, None)
        return bool(data)

    def drain(self) -> None:
        """Take what was written up to now, and no more: a daemon may go on writing."""
        for descriptor in self.streams:
            waiting = array.array("i", [0])
            fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
            goal = self.streams[descriptor].total_bytes + waiting[0]
            while self.streams[descriptor].total_bytes < goal:
                if not self.read(descriptor):
                    break

    def close_writers(self) -> None:
        """Leave the writing ends to the command."""
        for writer in self.writers:
            os.close(writer)

    def message(self) -> wire.Message:
        """What goes into the reply."""
        stdout, stderr = self.streams.values()
        return {
            "stdout": stdout.text(),
            "stderr": stderr.text(),
            "truncated": stdout.truncated or stderr.truncated,
        }


class Watcher:
    """The host's side of one command."""

    def __init__(
        self,
        channel: socket.socket,
        proc: int,
        init_pid: int | None,
        init_pidfd: int | None,
    ) -> None:
        self._channel = channel
        self._proc = proc
        self._init_pid = init_pid
        self._init_pidfd = init_pidfd
        self._supervisor = 0
        self._since = 0

    def run(self, command: Command, descriptors: list[int]) -> wire.Message:
        """Start and wait; returns the reply. This process has joined the sandbox.

        ``descriptors`` are standard input, output if it is piped, and the logs, if there
        are any.
        """
        given = 2 if command.piped else 1
        stdio, logs = descriptors[:given], descriptors[given:]
        output = Output(logs)
        try:
            account = joined.find_account(command.user)
        except joined.NoSuchUser as error:
            return {"refused": str(error)}
        joined.make_home(account)
        reports, reporting = wire.channel()
        start = time.monotonic()
        self._supervisor = os.fork()
        if self._supervisor == 0:
            own = [*stdio, *output.writers[given - 1 :]]
            _supervise(command, account, reporting, own)
        reporting.close()
        for descriptor in stdio:
            os.close(descriptor)
        output.close_writers()
        if command.announce:
            self._announce()
        found = processes.look(self._proc, self._supervisor)
        self._since = found.start_ticks if found else 0
        outcome = self._wait(reports, output, command.timeout_seconds, start)
        seconds = time.monotonic() - start
        output.drain()
        if self._is_lost():
            outcome = {"lost": "its first process ended"}
        return {**outcome, **output.message(), "seconds": seconds}

    def bury(self) -> None:
        """Collect the supervisor, whose work is done."""
        if self._supervisor:
            processes.send(self._supervisor, signal.SIGKILL)
            os.waitpid(self._supervisor, 0)

    def _wait(
        self,
        reports: socket.socket,
        output: Output,
        timeout: float | None,
        start: float,
    ) -> wire.Message:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(reports, select.POLLIN)
        for stream in output.streams:
            poll.register(stream, select.POLLIN)
        while True:
            left = None if timeout is None else start + timeout - time.monotonic()
            if left is not None and left <= 0:
                return self._end(reports, {"timed_out": True})
            ready = dict(poll.poll(None if left is None else left * 1000 + 1))
            for stream in output.streams:
                if stream in ready and not output.read(stream):
                    poll.unregister(stream)
            if reports.fileno() in ready:
                received = wire.receive(reports)
                if received is not None:
                    return received[0]
                # The agent killed the supervisor, and with it the hold on its tree.
                return self._end(reports, {"status": KILLED})
            if self._channel.fileno() in ready:
                # A request to kill, or the end of whoever waited for the result.
                wire.receive(self._channel)
                return self._end(reports, {"killed": True})

    def _end(self, reports: socket.socket, outcome: wire.Message) -> wire.Message:
        """Kill the whole tree; the command's own end wins when it came first."""
        reported = self._hold_supervisor(reports)
        clean = processes.kill_all(self._tree)
        processes.send(self._supervisor, signal.SIGKILL)
        clean = processes.kill_all(self._escaped) and clean
        if reported is not None and "timed_out" in outcome:
            return reported
        if not clean:
            outcome["survivors"] = True
        return outcome

    def _hold_supervisor(self, reports: socket.socket) -> wire.Message | None:
        """Stop the supervisor, so that it keeps its orphans until they are gone."""
        processes.send(self._supervisor, signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline:
            found = processes.look(self._proc, self._supervisor)
            if found is None or found.state in "TtZX":
                break
            time.sleep(0.0005)
        reports.setblocking(False)
        try:
            received = wire.receive(reports)
        except BlockingIOError:
            return None
        return received[0] if received else None

    def _tree(self) -> list[processes.Process]:
        return processes.descendants(processes.table(self._proc), self._supervisor)

    def _escaped(self) -> list[processes.Process]:
        """What belongs to nobody's supervisor and is younger than ours.

        Only a supervisor that was killed or woken by the agent loses anything. Those
        of other commands are no descendants of PID 1: their parents are outside.
        """
        now = processes.table(self._proc)
        tree = [now[self._supervisor]] if self._supervisor in now else []
        tree += processes.descendants(now, self._supervisor)
        if self._init_pid is not None:
            tree += processes.descendants(now, self._init_pid)
        else:
            tree += self._orphans_in_place(now)
        # A clock tick is 10 ms, in which an earlier command may have left something;
        # process IDs tell the order within it.
        start = (self._since, self._supervisor)
        return [one for one in tree if (one.start_ticks, one.pid) >= start]

    def _orphans_in_place(
        self, now: dict[int, processes.Process]
    ) -> list[processes.Process]:
        """Without PID 1 of our own, orphans come to the broker, beside the watchers."""
        broker = os.getppid()
        ours = processes.name(self._proc, broker)
        orphans = [
            process
            for process in now.values()
            if process.parent == broker
            and processes.name(self._proc, process.pid) != ours
        ]
        below = [processes.descendants(now, process.pid) for process in orphans]
        return [*orphans, *itertools.chain.from_iterable(below)]

    def _is_lost(self) -> bool:
        if self._init_pidfd is None:
            return False
        return bool(select.select([self._init_pidfd], [], [], 0)[0])

    def _announce(self) -> None:
        try:
            wire.send(self._channel, {"started": True})
        except OSError:
            return


def _supervise(
    command: Command,
    account: joined.Account,
    reporting: socket.socket,
    stdio: list[int],
) -> NoReturn:
    try:
        kernel.become_subreaper()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        child = _start(command, account, stdio)
        if isinstance(child, int):
            wire.send(reporting, {"status": child})
        else:
            _follow(child.pid, reporting)
    finally:
        os._exit(0)


def _follow(child: int, reporting: socket.socket) -> None:
    kernel.close_all_but({reporting.fileno()})
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            wire.send(reporting, {"status": code if code >= 0 else 128 - code})
            return


def _start(
    command: Command, account: joined.Account, stdio: list[int]
) -> subprocess.Popen[bytes] | int:
    """Start the command, or say on its standard error why not, with the exit code."""
    name = command.argv[0]
    is_root = account.uid == 0
    if is_root:
        joined.forget_groups()
    try:
        os.chdir(command.cwd)
    except OSError as error:
        why = f"cannot use the working directory {command.cwd}: {error.strerror}"
        return _refuse(stdio[2], why, NOT_EXECUTABLE)
    try:
        return subprocess.Popen(
            command.argv,
            stdin=stdio[0],
            stdout=stdio[1],
            stderr=stdio[2],
            env={"HOME": account.home, "USER": account.name, **command.env},
            start_new_session=True,
            user=None if is_root else account.uid,
            group=None if is_root else account.gid,
            extra_groups=None if is_root else list(account.groups),
        )
    except FileNotFoundError:
        return _refuse(stdio[2], f"{name}: not found", NOT_FOUND)
    except OSError as error:
        return _refuse(stdio[2], f"{name}: {error.strerror}", NOT_EXECUTABLE)
    except ValueError as error:  # a NUL in an argument or the environment
        return _refuse(stdio[2], f"{name!r}: {error}", NOT_EXECUTABLE)


def _refuse(stderr: int, text: str, code: int) -> int:
    os.write(stderr, f"{text}\n".encode(errors="replace"))
    return code
