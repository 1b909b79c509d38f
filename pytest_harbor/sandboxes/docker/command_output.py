"""What one command prints: both streams, kept within bounds and in its log files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from pytest_harbor.sandboxes.api import ExecResult
from pytest_harbor.sandboxes.docker.exec import ExecCall
from pytest_harbor.sandboxes.docker.stream import ExecStream
from pytest_harbor.sandboxes.output import CappedOutput


class CommandOutput:
    """Both streams of one command, their log files, and the parser that fills them.

    ``log`` gets both streams, unless ``error_log`` takes standard error; both are opened
    here and closed by :meth:`close`. ``stdout`` takes standard output instead of both.
    """

    def __init__(
        self,
        call: ExecCall,
        log: Path | None,
        error_log: Path | None = None,
        *,
        stdout: Callable[[bytes], None] | None = None,
    ) -> None:
        self._files: list[BinaryIO] = []
        for path in (log, error_log):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._files.append(path.open("ab"))
        logs: list[BinaryIO | None] = [*self._files] or [None]
        self._stdout = CappedOutput(log=logs[0])
        self._stderr = CappedOutput(log=logs[-1])
        self.stream = ExecStream(
            call.token, stdout or self._stdout.write, self._stderr.write
        )

    def close(self) -> None:
        """Nothing more comes."""
        for file in self._files:
            file.close()

    def text(self) -> str:
        """Both streams, standard output first."""
        return self._stdout.text() + self._stderr.text()

    def result(
        self, exit_code: int | None, seconds: float, *, timed_out: bool = False
    ) -> ExecResult:
        """How the command ended, with what it printed."""
        return ExecResult(
            exit_code=exit_code,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            timed_out=timed_out,
            truncated=self._stdout.truncated or self._stderr.truncated,
            seconds=seconds,
        )
