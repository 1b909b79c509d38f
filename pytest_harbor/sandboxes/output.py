"""What commands print: kept within bounds, and free of secrets."""

from __future__ import annotations

import functools
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from pytest_harbor.events import Json
from pytest_harbor.sandboxes.api import MAX_CAPTURED_BYTES

MASK = "***"
SHORTEST_SECRET = 6
"""Shorter values are not masked: ``1`` or ``true`` would garble every log."""

MAX_LOG_BYTES = 64 * 1024 * 1024
"""What one stream may add to its log. A loop that prints fills a disk at 200 MB/s, before
any budget ends it; an honest log is three powers of ten smaller."""

_CHUNK = 1024 * 1024


def log_cut(limit: int = MAX_LOG_BYTES) -> str:
    """The last line of a log that took no more."""
    return f"[... log cut at {limit} bytes ...]"


class CappedOutput:
    """One stream of a command: the first and last halves of ``limit`` bytes.

    What comes goes to ``log`` byte for byte, up to ``log_limit`` bytes and a line that
    says so.
    """

    def __init__(
        self,
        *,
        limit: int = MAX_CAPTURED_BYTES,
        log: BinaryIO | None = None,
        log_limit: int = MAX_LOG_BYTES,
    ) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._log = log
        self._log_limit = log_limit
        self.total_bytes = 0

    def write(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._log is not None:
            self._write_log(self._log, data)
        self.total_bytes += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def _write_log(self, log: BinaryIO, data: bytes) -> None:
        room = self._log_limit - self.total_bytes
        if room >= len(data):
            log.write(data)
        elif room >= 0:
            log.write(data[:room])
            log.write(f"\n{log_cut(self._log_limit)}\n".encode())
            self._log = None

    @property
    def truncated(self) -> bool:
        """True when bytes in the middle were left out."""
        return self.total_bytes > 2 * self._half

    def text(self) -> str:
        """What was kept, decoded with replacement, a gap said in words."""
        tail = bytes(self._tail[-self._half :])
        if not self.truncated:
            return (bytes(self._head) + tail).decode(errors="replace")
        gap = self.total_bytes - 2 * self._half
        head = bytes(self._head).decode(errors="replace")
        return (
            f"{head}\n[... {gap} bytes left out ...]\n{tail.decode(errors='replace')}"
        )


class Masker:
    """Replaces secret values wherever text leaves the engine (spec 3.11).

    Longer values go first, so that one that contains another is masked whole. A value is
    known as JSON writes it, too.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets: tuple[str, ...] = ()
        self.add(*secrets)

    def add(self, *secrets: str) -> None:
        """Mask these, too, from now on."""
        usable = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        usable |= {json.dumps(secret)[1:-1] for secret in usable} | {*self._secrets}
        self._secrets = tuple(sorted(usable, key=lambda value: (-len(value), value)))

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def text(self, text: str) -> str:
        """``text`` with every secret replaced."""
        return functools.reduce(
            lambda masked, secret: masked.replace(secret, MASK), self._secrets, text
        )

    def data(self, value: Json) -> Json:
        """Plain data with every secret replaced in its strings and keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.data(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.data(item) for item in value]
        return value

    def file(self, path: Path) -> None:
        """Mask a log file in place; its other bytes stay as they are."""
        if not self._secrets or path.is_symlink() or not path.is_file():
            return
        secrets = [secret.encode() for secret in self._secrets]
        try:
            if not _holds_any(path, secrets):
                return
            source = path.open("rb")
        except FileNotFoundError:
            return  # it was a copy that another thread masked
        with source:
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".masking-")
            with os.fdopen(descriptor, "wb") as masked:
                for chunk in _overlapping_chunks(source, secrets):
                    masked.write(chunk)
            Path(name).chmod(os.fstat(source.fileno()).st_mode & 0o777)
        Path(name).replace(path)

    def folder(self, folder: Path) -> None:
        """Mask every regular file below ``folder``, every name and every link."""
        if not self._secrets:
            return
        for root, folders, names in os.walk(folder, topdown=False):
            for name in names:
                self.file(Path(root, name))
            for name in (*folders, *names):
                self._link(Path(root, name))
                self._name(Path(root, name))

    def _link(self, path: Path) -> None:
        if not path.is_symlink():
            return
        target = str(path.readlink())
        if (masked := self.text(target)) != target:
            path.unlink()
            path.symlink_to(masked)

    def _name(self, path: Path) -> None:
        masked = self.text(path.name)
        if masked == path.name:
            return
        free = masked
        for number in itertools.count(2):
            if not os.path.lexists(path.with_name(free)):
                break
            free = f"{masked}-{number}"
        path.rename(path.with_name(free))


def _holds_any(path: Path, secrets: list[bytes]) -> bool:
    keep = max(map(len, secrets)) - 1
    rest = b""
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            window = rest + chunk
            if any(secret in window for secret in secrets):
                return True
            rest = window[-keep:]
    return False


def _overlapping_chunks(source: BinaryIO, secrets: list[bytes]) -> Iterable[bytes]:
    """Masked chunks, each held back far enough that no secret is cut in two."""
    keep = max(map(len, secrets)) - 1
    rest = b""
    while chunk := source.read(_CHUNK):
        window = _masked(rest + chunk, secrets)
        cut = max(0, len(window) - keep)
        rest = window[cut:]
        yield window[:cut]
    yield rest


def _masked(data: bytes, secrets: list[bytes]) -> bytes:
    for secret in secrets:
        data = data.replace(secret, MASK.encode())
    return data
