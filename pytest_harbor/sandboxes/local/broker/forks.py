"""Processes that the broker forks ahead of time, and what they do in a sandbox.

To fork and to join takes longer than most of what is asked, so it is done while nobody
waits: one process of each sandbox watches over its commands, and one moves files, both one
request after the other. They end when their line does.
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


def fork(work: Work, sandbox: Sandbox, keep: frozenset[int] = frozenset()) -> Fork:
    """A process that does ``work``; it imports nothing any more.

    It keeps the standard streams, its line, the sandbox's pidfd and ``keep``.
    """
    ours, theirs = wire.channel()
    pid = os.fork()
    if pid == 0:
        try:
            needed = {0, 1, 2, theirs.fileno(), *keep}
            if sandbox.init_pidfd is not None:
                needed.add(sandbox.init_pidfd)
            _prepare(needed)
            work(theirs, sandbox)
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


def run_commands(proc: int) -> Work:
    """Watch over one command after the other, until the line ends.

    ``proc`` is the host's ``/proc``. Each command replies on its own channel; the
    line hears when this process has time again.
    """

    def work(line: socket.socket, sandbox: Sandbox) -> None:
        gc.enable()  # it lives on; what the broker froze stays untouched
        problem = _enter(sandbox, sandbox.namespaces)
        keep = {0, 1, 2, line.fileno(), proc}
        if sandbox.init_pidfd is not None:
            keep.add(sandbox.init_pidfd)
        while (received := wire.receive(line)) is not None:
            message, (channel_number, *descriptors) = received
            channel = socket.socket(fileno=channel_number)
            if problem:
                wire.last_reply(channel, {"lost": problem})
                return
            watcher = command.Watcher(
                channel, proc, sandbox.init_pid, sandbox.init_pidfd
            )
            try:
                reply = watcher.run(command.Command.parse(message), descriptors)
            except BaseException as error:  # noqa: BLE001  # whoever waits must hear of it
                wire.last_reply(channel, {"lost": f"{type(error).__name__}: {error}"})
                return
            # In this order: who has the reply may ask for the next command at once.
            wire.send(line, {"idle": True})
            wire.last_reply(channel, reply)
            watcher.bury()
            channel.close()
            kernel.close_all_but(keep)

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
