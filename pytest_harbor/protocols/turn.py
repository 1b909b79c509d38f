"""One message on its way to an end: send, poll, give up (spec 7.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio

from pytest_harbor.errors import ProtocolError, ServerRefused, ServerUnreachable
from pytest_harbor.protocols.reply import Reply, Seen, State, conclude

if TYPE_CHECKING:
    from a2a.types.a2a_pb2 import Part as CorePart

    from pytest_harbor.protocols.a2a_wire import WireClient

CANCEL_SECONDS: Final = 5.0
POLL_SECONDS: Final = 30.0
"""Longest wait for the answer to one poll."""
_FIRST_PAUSE_SECONDS: Final = 0.02
_PAUSE_GROWTH: Final = 1.5
_UNREACHABLE_POLLS: Final = 3
_NOT_THERE: Final = (404, 405)
_TASK_NOT_FOUND: Final = -32001


class Turn:
    """A message to an agent. The A2A task behind it never outlives :meth:`run`."""

    def __init__(
        self,
        wire: WireClient,
        parts: Sequence[CorePart],
        *,
        message_id: str,
        context_id: str,
        answers: str | None,
        timeout_seconds: float,
        poll_seconds: float,
        unreachable_seconds: float,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        self._wire = wire
        self._parts = parts
        self._message_id = message_id
        self._context_id = context_id
        self._answers = answers
        self._timeout_seconds = timeout_seconds
        self._poll_seconds = poll_seconds
        self._unreachable_seconds = unreachable_seconds
        self._metadata = metadata
        self._seen: Seen | None = None

    async def run(self) -> Reply:
        """Send, and wait for the end; how it ended is in the reply."""
        try:
            with anyio.move_on_after(self._timeout_seconds):
                return await self._to_its_end()
        except anyio.get_cancelled_exc_class():
            await self._cancel()
            raise
        await self._cancel()
        return self._end(
            State.TIMEOUT,
            f"the agent did not end its turn in {self._timeout_seconds:g} s",
        )

    async def _to_its_end(self) -> Reply:
        try:
            former = await self._former_stamp()
            self._seen = await self._send()
            await self._poll(former)
        except _AgentRefused as error:
            return self._end(State.FAILED, str(error), error.code)
        except ProtocolError as error:
            await self._cancel()
            return self._end(State.UNREACHABLE, str(error), _code(error))
        assert self._seen.state is not None
        return self._end(self._seen.state)

    def _end(
        self, state: State, error: str | None = None, code: str | None = None
    ) -> Reply:
        return conclude(
            self._seen,
            state,
            message_id=self._message_id,
            context_id=self._context_id,
            error=error,
            code=code,
        )

    async def _former_stamp(self) -> str | None:
        """The status that the message answers: the agent may still show it for a while."""
        if not self._answers:
            return None
        seen = await self._wire.look(self._answers, timeout_seconds=POLL_SECONDS)
        return seen.stamp

    async def _send(self) -> Seen:
        """Send the message; again only if it certainly never arrived."""
        outage = _Outage(self._unreachable_seconds)
        while True:
            try:
                return await self._wire.send(
                    self._parts,
                    message_id=self._message_id,
                    context_id=self._context_id,
                    task_id=self._answers,
                    metadata=self._metadata,
                    # The turn's own limit comes first.
                    timeout_seconds=self._timeout_seconds + POLL_SECONDS,
                )
            except ServerUnreachable as error:
                if error.sent:
                    raise
                outage.add(error)
            except ServerRefused as error:
                if error.code is not None:
                    raise _AgentRefused(str(error), error.code) from error
                if error.status not in _NOT_THERE or not self._wire.fall_back():
                    raise
                continue
            await anyio.sleep(self._poll_seconds)

    async def _poll(self, former_stamp: str | None) -> None:
        pause = min(_FIRST_PAUSE_SECONDS, self._poll_seconds)
        outage = _Outage(self._unreachable_seconds)
        while self._seen is not None and not _ended(self._seen, former_stamp):
            await anyio.sleep(pause)
            pause = min(pause * _PAUSE_GROWTH, self._poll_seconds)
            assert self._seen.task_id is not None
            try:
                self._seen = await self._wire.look(
                    self._seen.task_id, timeout_seconds=POLL_SECONDS
                )
            except ProtocolError as error:
                if isinstance(error, ServerRefused) and error.code == _TASK_NOT_FOUND:
                    raise
                outage.add(error)
                pause = self._poll_seconds
            else:
                outage = _Outage(self._unreachable_seconds)

    async def _cancel(self) -> None:
        """Stop the A2A task, if there is one; the agent's answer changes nothing."""
        if self._seen is None or self._seen.task_id is None:
            return
        with anyio.move_on_after(CANCEL_SECONDS, shield=True):
            try:
                await self._wire.cancel(
                    self._seen.task_id, timeout_seconds=CANCEL_SECONDS
                )
            except ProtocolError:
                return


class _AgentRefused(Exception):
    """The agent answered the message with a JSON-RPC error: it tried, and failed."""

    def __init__(self, message: str, code: int | str) -> None:
        super().__init__(message)
        self.code = str(code)


class _Outage:
    """Attempts in a row that got no answer, and since when."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._attempts = 0
        self._since = 0.0

    def add(self, error: ProtocolError) -> None:
        """Count one more. Raises ``error`` when it is enough (7.2: 3 over 60 s)."""
        now = anyio.current_time()
        if not self._attempts:
            self._since = now
        self._attempts += 1
        if (
            self._attempts >= _UNREACHABLE_POLLS
            and now - self._since >= self._limit_seconds
        ):
            raise error


def _ended(seen: Seen, former_stamp: str | None) -> bool:
    return seen.state is not None and seen.stamp != former_stamp


def _code(error: ProtocolError) -> str | None:
    if not isinstance(error, ServerRefused):
        return None
    return str(error.code) if error.code is not None else f"HTTP {error.status}"
