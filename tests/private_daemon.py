"""A Docker daemon of a test's own, that may be killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

DOCKERD = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
START_SECONDS = 60


class Daemon:
    """``url`` is for DOCKER_HOST. Containers have no network, so that nothing of the host's changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        assert DOCKERD is not None
        (self.folder / "docker.pid").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    # With a network of its own: --bridge=none removes docker0, which
                    # belongs to the machine's daemon.
                    *("unshare", "--net"),
                    *(DOCKERD, "--host", self.url),
                    *("--data-root", self.folder / "data"),
                    *("--exec-root", self.folder / "run"),
                    *("--pidfile", self.folder / "docker.pid"),
                    *("--bridge=none", "--iptables=false", "--ip-forward=false"),
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.folder / "log").read_text()[-3000:])
            time.sleep(0.05)

    def _answers(self) -> bool:
        # By hand: docker-py leaves its socket open when nobody listens.
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(os.fspath(self.folder / "docker.sock"))
                connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b"200 OK" in connection.recv(100)
            except OSError:
                return False

    def client(self) -> docker.DockerClient:
        """A client, for the caller to close."""
        return docker.DockerClient(base_url=self.url)

    def end(self, number: signal.Signals) -> None:
        """Send it a signal, and wait until it is gone."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)
        # Its containerd, which a killed one leaves: as a zombie it would pass for alive.
        state = self.folder / "run" / "containerd"
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((state / "containerd.pid").read_text()), signal.SIGKILL)
        for name in ("containerd.pid", "containerd.sock", "containerd.sock.ttrpc"):
            (state / name).unlink(missing_ok=True)

    def load(self, image: str) -> None:
        """Bring an image over from the common daemon."""
        common = docker.from_env()
        mine = self.client()
        mine.images.load(b"".join(common.images.get(image).save(named=True)))
        mine.close()
        common.close()


@contextmanager
def private_daemon() -> Iterator[Daemon]:
    """A running daemon; nothing of it is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="phd-"))  # a socket's path is short
    daemon = Daemon(folder)
    try:
        daemon.start()
        yield daemon
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if daemon._process is not None and daemon._process.poll() is None:
                daemon.end(signal.SIGTERM)
        for mount in _mounts_below(folder):
            subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _mounts_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1] for line in lines]
    return [point for point in reversed(points) if point.startswith(f"{folder}/")]
