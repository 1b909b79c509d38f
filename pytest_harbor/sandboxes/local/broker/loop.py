"""The loop of the broker: it waits for descriptors, and does what is due."""

from __future__ import annotations

import select
from collections.abc import Callable


class Loop:
    """Actions for descriptors on which something happens."""

    def __init__(self) -> None:
        self._actions: dict[int, Callable[[], None]] = {}
        self._poll = select.poll()

    def turn(self, timeout_ms: int | None) -> bool:
        """Wait, and do what is due; False when nothing was. ``None`` waits for ever."""
        ready = [
            (descriptor, self._actions[descriptor])
            for descriptor, _ in self._poll.poll(timeout_ms)
        ]
        for descriptor, action in ready:
            # An earlier action may have closed it, and a new one have the same number.
            if self._actions.get(descriptor) is action:
                action()
        return bool(ready)

    def watch(self, descriptor: int, events: int, action: Callable[[], None]) -> None:
        """Do ``action`` at each of these poll ``events``; 0 means the other end's end."""
        self._actions[descriptor] = action
        self._poll.register(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Before it is closed: its number will be another's."""
        if self._actions.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)
