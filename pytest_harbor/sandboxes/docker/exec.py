"""Running one command in a container, and killing all of it.

An exec costs two requests: create and start. The exit code comes back in the stream
(:mod:`.stream`), which is read in the event loop, so a waiting exec holds no thread and can be
cancelled. Closing the connection does not end a command: :func:`kill_tree` does.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import docker

from pytest_harbor.errors import SandboxLost
from pytest_harbor.sandboxes.docker.client import Engine
from pytest_harbor.sandboxes.docker.scripts import KILL, MARKER, SHELL, WRAPPER, script
from pytest_harbor.sandboxes.docker.stream import ExecStream

BEGIN_TIMEOUT_SECONDS = 60.0
"""From the start of an exec to the first sign of life of its wrapper."""

_KILL_TIMEOUT_SECONDS = 20.0
DRAIN_SECONDS = 1.0
"""For output on its way when the command was killed; some daemons keep the stream open."""

_CHUNK = 64 * 1024


@dataclass(frozen=True)
class ExecCall:
    """One command for one container, every default filled in."""

    container: str
    argv: Sequence[str]
    user: str
    cwd: str
    env: Mapping[str, str]
    ask_tools: Sequence[str] = ()
    stdin: bytes | None = None
    marker: str = field(default_factory=lambda: secrets.token_hex(8))
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def _told(self) -> list[str]:
        """What the wrapper is told before the command."""
        return [self.token, self.cwd, " ".join(self.ask_tools)]

    def script(self) -> str | None:
        """The command for a shell that waits; ``None`` when it cannot be said so."""
        if self.stdin is not None:
            return None
        return script(self._told, self.env, self.argv)

    def create(self, client: docker.APIClient) -> str:
        """Register the exec with the daemon; returns its ID."""
        answer = client.exec_create(
            self.container,
            [SHELL, "-c", WRAPPER, "sh", *self._told, *self.argv],
            stdin=self.stdin is not None,
            user=self.user,
            # "/" always exists; the wrapper goes to the working directory itself.
            workdir="/",
            environment={**self.env, MARKER: self.marker},
        )
        return str(answer["Id"])


class Connection:
    """The hijacked connection of a started exec, without blocking."""

    def __init__(self, exec_id: str, hijacked: Any) -> None:
        self.exec_id = exec_id
        self._hijacked = hijacked
        self._response = hijacked._response  # noqa: SLF001 - docker-py keeps it there
        self._socket: socket.socket = getattr(hijacked, "_sock", hijacked)
        self._socket.setblocking(False)
        self._early = self._read_ahead()

    def _read_ahead(self) -> bytes:
        """Bytes that arrived together with the answer's header.

        They sit in http.client's buffer, which docker-py goes round.
        """
        try:
            reader = self._response.raw._fp.fp  # noqa: SLF001 - no public way
            return bytes(reader.peek())
        except (AttributeError, ValueError, OSError):
            return b""

    async def receive(self) -> bytes:
        """The next bytes; empty when the other side has closed."""
        if self._early:
            early, self._early = self._early, b""
            return early
        while True:
            await anyio.lowlevel.checkpoint()
            try:
                return self._socket.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError):
                await anyio.wait_readable(self._socket)
            except OSError:
                return b""

    def receive_blocking(self) -> bytes:
        """As :meth:`receive`, for a thread of one's own."""
        if self._early:
            early, self._early = self._early, b""
            return early
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._socket, selectors.EVENT_READ)
                while True:
                    selector.select()
                    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
                        return self._socket.recv(_CHUNK)
        except (OSError, ValueError):  # closed by the other thread
            return b""

    async def send_all(self, data: bytes) -> None:
        """Send the command's whole standard input, then its end.

        A command that does not read it to the end is none of our business.
        """
        with contextlib.suppress(OSError):
            await self.send(data)
            self._socket.shutdown(socket.SHUT_WR)

    async def send(self, data: bytes) -> None:
        """Send some of the command's standard input. Raises OSError."""
        view = memoryview(data)
        while view:
            await anyio.wait_writable(self._socket)
            with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
                view = view[self._socket.send(view[:_CHUNK]) :]

    def hang_up(self) -> None:
        """Make whoever reads see the end of the stream, in another thread too."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up and give everything back. Only for the thread that reads."""
        self.hang_up()
        with contextlib.suppress(OSError, ValueError):
            self._response.close()
        with contextlib.suppress(OSError, ValueError):
            self._hijacked.close()
        with contextlib.suppress(OSError):
            self._socket.close()


@dataclass
class Ended:
    """How an exec ended: at most one way, none if the wrapper died without a word."""

    exec_id: str
    exit_code: int | None = None
    timed_out: bool = False
    never_began: bool = False
    """The wrapper gave no sign of life: nothing can be run (as this user)."""


async def run(
    engine: Engine,
    call: ExecCall,
    stream: ExecStream,
    *,
    timeout_seconds: float | None,
    kill: Callable[[ExecCall, ExecStream], Awaitable[None]],
    shell: Connection | None = None,
) -> Ended:
    """Run ``call`` to its end, feeding ``stream``.

    ``shell`` is the connection of a shell that waits for it, if there is one.

    The time runs from the moment when the command runs, not from the request. ``kill``
    is awaited when it is over, or when the caller is cancelled.

    Raises:
        DaemonError: the daemon refused or is gone.
    """
    if shell is None:
        connection, sent = await start(engine, call), call.stdin
    else:
        connection, sent = shell, (call.script() or "").encode()
    try:
        if sent is None:
            ended = await _follow(connection, stream, timeout_seconds)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(connection.send_all, sent)
                ended = await _follow(connection, stream, timeout_seconds)
                tasks.cancel_scope.cancel()
        if ended.timed_out:
            await kill(call, stream)
            with anyio.move_on_after(DRAIN_SECONDS):
                await _read_to_end(connection, stream)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True), contextlib.suppress(SandboxLost):
            await kill(call, stream)
        raise
    finally:
        connection.close()
        stream.flush()
    return ended


async def start(engine: Engine, call: ExecCall) -> Connection:
    """Create and start the exec. Raises DaemonError."""

    def create_and_start(client: docker.APIClient) -> Connection:
        exec_id = call.create(client)
        return Connection(exec_id, client.exec_start(exec_id, socket=True))

    return await engine.call(create_and_start)


async def _follow(
    connection: Connection, stream: ExecStream, timeout_seconds: float | None
) -> Ended:
    exec_id = connection.exec_id
    if not await read_to_begin(connection, stream):
        return Ended(exec_id, never_began=True)
    with anyio.move_on_after(timeout_seconds) as limit:
        await _read_to_end(connection, stream)
    if stream.exit_code is not None:
        return Ended(exec_id, stream.exit_code)
    return Ended(exec_id, timed_out=limit.cancelled_caught)


async def read_to_begin(connection: Connection, stream: ExecStream) -> bool:
    """Read until the wrapper runs; False when it never does."""
    with anyio.move_on_after(BEGIN_TIMEOUT_SECONDS):
        while stream.begin is None:
            data = await connection.receive()
            if not data:
                break
            stream.feed(data)
    return stream.begin is not None


async def _read_to_end(connection: Connection, stream: ExecStream) -> None:
    while stream.exit_code is None:
        data = await connection.receive()
        if not data:
            return
        stream.feed(data)


async def kill_tree(
    engine: Engine, container: str, marker: str, since_ticks: int
) -> bool:
    """Kill every process of one exec; False when that cannot be confirmed.

    Raises:
        DaemonError: the daemon refused or is gone.
    """
    pending, asked = ["0"], {"0"}
    with anyio.move_on_after(_KILL_TIMEOUT_SECONDS):
        while pending:
            lines = await _run_kill(
                engine, container, pending.pop(), [marker, str(since_ticks)]
            )
            if "clean" not in lines:
                return False
            for line in lines:
                word, _, uid = line.partition(" ")
                if word == "foreign" and uid.isdigit() and uid not in asked:
                    asked.add(uid)
                    pending.append(uid)
        return True
    return False


async def _run_kill(
    engine: Engine, container: str, user: str, arguments: list[str]
) -> set[str]:
    output = bytearray()
    call = ExecCall(
        container, [SHELL, "-c", KILL, "sh", *arguments], user=user, cwd="/", env={}
    )
    stream = ExecStream(call.token, output.extend, lambda _: None)
    connection = await start(engine, call)
    try:
        await _read_to_end(connection, stream)
    finally:
        connection.close()
    return set(output.decode(errors="replace").splitlines())
