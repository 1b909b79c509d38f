"""Processes that the broker forks ahead of time, and what they do in a sandbox.

To fork and to join takes longer than most of what is asked, so it is done while nobody
waits: one process of each sandbox waits for the next command, and one moves files, one
request after the other. Both are forked while the sandbox is being made, hear on their
line when it is there, and end when the line does.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pytest_harbor.sandboxes.local.broker import command, files, joined, kernel, wire

Work: TypeAlias = "Callable[[socket.socket, Sandbox], None]"


@dataclass(frozen=True)
class Sandbox:
    """What has to be known of a sandbox to work in it."""

    namespaces: int
    init_pid: int | None = None
    """Its PID 1; ``None`` in-place, where nothing has to be joined."""
    init_pidfd: int | None = None


@dataclass(frozen=True)
class Fork:
    """A forked process, and the broker's end of its line."""

    pid: int
    line: socket.socket

    def show(self, sandbox: Sandbox) -> None:
        """Tell it which sandbox is its own; what it is asked before would wait."""
        message = {"namespaces": sandbox.namespaces, "init_pid": sandbox.init_pid}
        pidfd = sandbox.init_pidfd
        try:
            wire.send(self.line, message, () if pidfd is None else [pidfd])
        except OSError:
            return  # it was killed; whoever asks it for something will see


def fork(work: Work, keep: set[int] | frozenset[int] = frozenset()) -> Fork:
    """A process that does ``work`` once it knows its sandbox.

    It keeps the standard streams, its line and ``keep``, and imports nothing any more.
    """
    ours, theirs = wire.channel()
    pid = os.fork()
    if pid == 0:
        try:
            _prepare({0, 1, 2, theirs.fileno(), *keep})
            if (received := wire.receive(theirs)) is not None:
                facts, pidfds = received
                pidfd = pidfds[0] if pidfds else None
                work(theirs, Sandbox(facts["namespaces"], facts["init_pid"], pidfd))
        finally:
            os._exit(0)  # a fork must never return
    theirs.close()
    return Fork(pid, ours)


def _prepare(keep: set[int]) -> None:
    """Turn a fresh fork of the broker into one that only knows ``keep``."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    kernel.close_all_but(keep)
    # Nothing may be imported any more: the paths would be those of the sandbox.
    sys.path.clear()
    sys.path_importer_cache.clear()
    kernel.die_with_parent(signal.SIGKILL)


def _enter(sandbox: Sandbox, namespaces: int) -> str:
    """Join a sandbox; returns why that failed, if it did."""
    try:
        joined.enter(sandbox.init_pidfd, namespaces)
    except OSError as error:
        return str(error)
    return ""


def run_command(proc: int) -> Work:
    """Wait for one command and watch over it; ``proc`` is the host's ``/proc``."""

    def work(line: socket.socket, sandbox: Sandbox) -> None:
        problem = _enter(sandbox, sandbox.namespaces)
        received = wire.receive(line)
        line.close()
        if received is None:
            return
        message, (channel_number, *descriptors) = received
        channel = socket.socket(fileno=channel_number)
        try:
            if problem:
                _reply(channel, {"lost": problem})
                return
            watcher = command.Watcher(
                channel, proc, sandbox.init_pid, sandbox.init_pidfd
            )
            watcher.run(command.Command.parse(message), descriptors)
        except BaseException as error:  # noqa: BLE001  # whoever waits must hear of it
            _reply(channel, {"lost": f"{type(error).__name__}: {error}"})

    return work


def move_files(line: socket.socket, sandbox: Sandbox) -> None:
    """Serve requests for files until the line ends. Replies go back on the line."""
    gc.enable()  # it lives on; what the broker froze stays untouched
    # No PID namespace: the sandbox's /proc then has no entry for this process.
    problem = _enter(
        sandbox, sandbox.namespaces & (kernel.CLONE_NEWNS | kernel.CLONE_NEWUSER)
    )
    if sandbox.init_pidfd is not None:
        os.close(sandbox.init_pidfd)
    while (received := wire.receive(line)) is not None:
        message, descriptors = received
        try:
            reply = {"lost": problem} if problem else _move(message, descriptors)
        except BaseException as error:  # noqa: BLE001  # whoever waits must hear of it
            reply = {"lost": f"{type(error).__name__}: {error}"}
        for descriptor in descriptors:
            os.close(descriptor)
        wire.send(line, reply)


def _move(message: wire.Message, descriptors: list[int]) -> wire.Message:
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
