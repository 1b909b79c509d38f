"""SIGTERM as Ctrl-C, and one Ctrl-C for all that a person presses."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

MESSAGE: Final = b"\nharbor: still removing sandboxes, one moment\n"


class Interrupts:
    """While armed, a signal ends pytest as the first Ctrl-C does, and further ones wait.

    A second ``KeyboardInterrupt`` would break off whatever pytest is doing about the first: a
    traceback, no exit code 2, sandboxes left up. Handlers that somebody else installed stay,
    and outside the main thread, where Python allows no handlers, nothing is done.
    """

    def __init__(self, *, is_worker: bool = False) -> None:
        self._is_worker = is_worker
        self._is_ending = False
        self._takes: dict[signal.Signals, object] = {}

    def arm(self) -> None:
        """Take over the signals unless that was done, or somebody else has them."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, default in (
            (signal.SIGTERM, signal.SIG_DFL),
            (signal.SIGINT, signal.default_int_handler),
        ):
            if number not in self._takes and signal.getsignal(number) is default:
                self._takes[number] = default
                signal.signal(number, self._meet)

    def goes_on(self) -> None:
        """An item starts: whatever was pressed before did not end the session."""
        self._is_ending = False

    def disarm(self) -> None:
        """Give the signals back."""
        for number, default in self._takes.items():
            # As bound methods are made anew each time: equal, never the same.
            if signal.getsignal(number) != self._meet:
                continue
            # What is pressed now meets a worker on its way out, with nothing to say.
            stays = self._is_worker and self._is_ending
            signal.signal(number, signal.SIG_IGN if stays else default)  # type: ignore[arg-type]
        self._takes.clear()

    def _meet(self, number: int, _frame: FrameType | None) -> None:
        if self._is_ending:
            if not self._is_worker:
                os.write(2, MESSAGE)  # a signal may come in the middle of a print()
            return
        self._is_ending = True
        if number == signal.SIGTERM:
            raise KeyboardInterrupt("SIGTERM")
        raise KeyboardInterrupt
