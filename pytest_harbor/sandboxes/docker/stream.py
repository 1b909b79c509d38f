"""What comes back over an exec's connection: frames, and our own marks in them.

The daemon multiplexes both output streams in frames. The wrapper in the container writes
three marks of its own, each ``@@<token>:<text>@@`` with a random token: ``begin`` on standard
error before the command, ``end`` on both streams after it. The end marks give the exit
code without another request, and without waiting for the end of a stream that a
process left in the background may hold open. No I/O happens here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_HEADER_BYTES = 8
_STDERR = 2
_LONGEST_MARK = 512


@dataclass(frozen=True)
class Begin:
    """The command is about to start."""

    start_ticks: int
    """When the wrapper was started, in the kernel's clock ticks; 0 if unknown."""
    tools: frozenset[str] | None
    """Which tools the sandbox has; ``None`` when they were not asked for."""


class _MarkedStream:
    """One output stream: passes on what is output, takes out what is a mark."""

    def __init__(self, token: str, write: Callable[[bytes], None]) -> None:
        self._opening = f"@@{token}:".encode()
        self._write = write
        self._held = b""
        self.begin: Begin | None = None
        self.exit_code: int | None = None
        self.oom_kills = 0

    @property
    def ended(self) -> bool:
        return self.exit_code is not None

    def feed(self, data: bytes) -> None:
        data = self._held + data
        self._held = b""
        while data and not self.ended:
            at = data.find(self._opening)
            if at < 0:
                at = len(data) - self._opening_at_end(data)
                self._pass_on(data[:at])
                self._held = data[at:]
                return
            self._pass_on(data[:at])
            start = at + len(self._opening)
            close = data.find(b"@@", start)
            if close < 0:
                self._held = data[at:]
                if len(self._held) > _LONGEST_MARK:  # somebody imitates our mark
                    self.flush()
                return
            self._take_mark(data[start:close].decode(errors="replace"))
            data = data[close + 2 :]

    def flush(self) -> None:
        """Nothing more comes: what looked like the start of a mark was output."""
        held, self._held = self._held, b""
        self._pass_on(held)

    def _pass_on(self, data: bytes) -> None:
        if data:
            self._write(data)

    def _opening_at_end(self, data: bytes) -> int:
        """How many bytes at the end of ``data`` may be the start of a mark."""
        longest = min(len(data), len(self._opening) - 1)
        for size in range(longest, 0, -1):
            if data.endswith(self._opening[:size]):
                return size
        return 0

    def _take_mark(self, text: str) -> None:
        kind, *values = text.split(":")
        if kind == "begin" and len(values) == 3:
            ticks, tools, kills = values
            known = frozenset(tools.split(",")) - {"", "?"}
            self.oom_kills = _number(kills)
            self.begin = Begin(_number(ticks), None if tools == "?" else known)
        elif kind == "end" and len(values) == 2 and values[0].isdigit():
            self.oom_kills = _number(values[1])
            self.exit_code = int(values[0])


def _number(text: str) -> int:
    """What the wrapper could not find out is 0."""
    return int(text) if text.isdigit() else 0


class ExecStream:
    """Takes the bytes of an exec's connection apart.

    Output goes to the two writers; ``begin`` and ``exit_code`` are set as the marks
    come in.
    """

    def __init__(
        self,
        token: str,
        stdout: Callable[[bytes], None],
        stderr: Callable[[bytes], None],
    ) -> None:
        self._buffer = bytearray()
        self._stdout = _MarkedStream(token, stdout)
        self._stderr = _MarkedStream(token, stderr)

    @property
    def begin(self) -> Begin | None:
        """Set once the wrapper runs."""
        return self._stderr.begin

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, once both streams have ended.

        Both, because the daemon copies them independently of each other.
        """
        return self._stderr.exit_code if self._stdout.ended else None

    @property
    def oom_kills(self) -> int:
        """Processes of the container that the kernel killed for memory so far."""
        return self._stderr.oom_kills

    def feed(self, data: bytes) -> None:
        """Take the next bytes from the connection."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _HEADER_BYTES:
            size = int.from_bytes(self._buffer[at + 4 : at + _HEADER_BYTES], "big")
            start = at + _HEADER_BYTES
            if len(self._buffer) < start + size:
                break
            content = bytes(self._buffer[start : start + size])
            stream = self._stderr if self._buffer[at] == _STDERR else self._stdout
            stream.feed(content)
            at = start + size
        del self._buffer[:at]

    def flush(self) -> None:
        """The connection has ended, or nobody reads on."""
        self._stdout.flush()
        self._stderr.flush()
