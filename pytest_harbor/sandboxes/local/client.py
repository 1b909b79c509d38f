"""The provider's connection to its broker process."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

import pytest_harbor
from pytest_harbor.errors import SandboxLost, SandboxUnavailable, UnsupportedByProvider
from pytest_harbor.sandboxes.local.broker import wire

_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]);"
    "from pytest_harbor.sandboxes.local.broker.main import main; main()"
)
_MAX_STDERR_BYTES = 4000


class BrokerClient:
    """Starts the broker, on first use at the latest, and sends it requests.

    May be used from several event loops and threads: every request has a channel of
    its own, nothing is shared but the sending end. ``folder`` is removed by the broker
    when it ends, however that comes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = -1

    def start(self) -> None:
        """Have the broker start while something else is done.

        Raises:
            SandboxUnavailable: its interpreter cannot be started.
        """
        with self._lock:
            if self._socket is None:
                self._socket = self._start()

    def request(
        self, message: Mapping[str, object], descriptors: Sequence[int] = ()
    ) -> socket.socket:
        """Send a request; returns the channel on which its reply will come.

        Raises:
            SandboxLost: the broker is gone.
        """
        mine, theirs = wire.channel()
        mine.setblocking(False)
        try:
            with self._lock, theirs:
                if self._socket is None:
                    self._socket = self._start()
                wire.send(self._socket, message, (theirs.fileno(), *descriptors))
        except OSError as error:
            mine.close()
            raise SandboxLost(self.epitaph()) from error
        except BaseException:
            mine.close()
            raise
        return mine

    def _start(self) -> socket.socket:
        ours, theirs = wire.channel()
        owner = os.pidfd_open(os.getpid())
        self._stderr = os.memfd_create("broker-stderr", os.MFD_CLOEXEC)
        root = Path(pytest_harbor.__file__).parent.parent
        arguments = [str(theirs.fileno()), str(owner), str(self._folder)]
        # Some interpreters find their own library by this variable alone.
        env = {
            name: value
            for name, value in os.environ.items()
            if name == "LD_LIBRARY_PATH"
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(root), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(theirs.fileno(), owner),
                start_new_session=True,
                env=env,
                cwd="/",
            )
        except OSError as error:
            ours.close()
            raise SandboxUnavailable(
                f"cannot start {sys.executable}, which keeps the local sandboxes: "
                f"{error.strerror}"
            ) from error
        finally:
            theirs.close()
            os.close(owner)
        return ours

    async def reply(self, channel: socket.socket) -> wire.Message:
        """The next reply on the channel of a request.

        Raises:
            SandboxLost: the broker is gone, or the sandbox cannot run anything.
            UnsupportedByProvider: what was asked for cannot be done.
        """
        message = await receive(channel)
        if message is None:
            raise SandboxLost(self.epitaph())
        if "lost" in message:
            raise SandboxLost(f"the sandbox cannot run anything: {message['lost']}")
        if "refused" in message:
            raise UnsupportedByProvider(f"local sandbox: {message['refused']}")
        return message

    @property
    def has_ended(self) -> bool:
        """True when the broker was started and is gone."""
        if self._process is None or self._socket is None:
            return False
        hung_up = select.poll()
        hung_up.register(self._socket, 0)
        return bool(hung_up.poll(0)) or self._process.poll() is not None

    def epitaph(self) -> str:
        """Why the broker is gone, as far as it said so."""
        text = ""
        if self._stderr >= 0:
            said = os.pread(self._stderr, 1 << 20, 0)[-_MAX_STDERR_BYTES:]
            text = said.decode(errors="replace").strip()
        return (
            f"the process that keeps the local sandboxes has ended: {text or 'killed'}"
        )

    async def aclose(self) -> None:
        """End the broker and everything it keeps; returns when it is gone."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.close)

    def close(self) -> None:
        """As :meth:`aclose`, blocking."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            if self._process is not None:
                self._process.wait()
                self._process = None
                os.close(self._stderr)
                self._stderr = -1


async def receive(channel: socket.socket) -> wire.Message | None:
    """The next reply on a channel; ``None`` when the other end is gone."""
    while True:
        await anyio.wait_readable(channel)
        try:
            received = wire.receive(channel)
        except BlockingIOError:
            continue
        return None if received is None else received[0]
