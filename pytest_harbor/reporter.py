"""Events of one episode or run of steps, on their way to whoever watches, secrets masked."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pytest_harbor.events import Event, EventKind, Json, Observer
from pytest_harbor.sandboxes.output import Masker


class Reporter:
    """Sends the events of one episode or run to an observer, if there is one."""

    def __init__(self, observe: Observer | None, episode: str) -> None:
        self._observe = observe
        self._episode = episode
        self.masker = Masker(())
        """Set once the secrets are known, before anything could show one."""

    def send(
        self,
        kind: EventKind,
        *,
        step: str | None = None,
        phase: str | None = None,
        message: str = "",
        data: Mapping[str, Json] | None = None,
    ) -> None:
        """Send one event; ``data`` is what survives JSON."""
        if self._observe is None:
            return
        masked = {key: self.masker.data(value) for key, value in (data or {}).items()}
        self._observe(
            Event(
                kind,
                self._episode,
                time.time(),
                step,
                phase,
                self.masker.text(message),
                masked,
            )
        )
