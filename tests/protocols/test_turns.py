"""How a turn ends when the agent cannot be reached (spec 7.2), with a scripted wire."""

from __future__ import annotations

import anyio
import pytest

from pytest_harbor.errors import ProtocolError, ServerRefused, ServerUnreachable
from pytest_harbor.protocols.reply import Seen, State
from pytest_harbor.protocols.turn import Turn

pytestmark = pytest.mark.anyio

WORKING = Seen(None, "t1", "c1", stamp="working")
DONE = Seen(
    State.COMPLETED, "t1", "c1", ({"kind": "text", "text": "ok"},), stamp="done"
)
REFUSED = ServerUnreachable("connection refused", sent=False)
BROKEN = ServerUnreachable("connection broke")
NOT_THERE = ServerRefused("404", status=404)
LOST_TASK = ServerRefused("task not found", code=-32001)


class Wire:
    """Answers from lists; the last entry for ever."""

    def __init__(self, sends, looks=(DONE,), *, fallback=True):
        self.sends, self.looks = list(sends), list(looks)
        self.sent = self.looked = self.fallen_back = 0
        self.cancelled = []
        self._fallback = fallback

    @staticmethod
    def _next(script):
        step = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(step, Exception):
            raise step
        return step

    async def send(self, parts, **options):
        self.sent += 1
        return self._next(self.sends)

    async def look(self, task_id, **options):
        self.looked += 1
        return self._next(self.looks)

    async def cancel(self, task_id, **options):
        self.cancelled.append(task_id)
        raise ProtocolError("whatever it answers")

    def fall_back(self):
        self.fallen_back += 1
        return self._fallback and self.fallen_back == 1


async def run(wire, *, unreachable=0.05, seconds=5.0, answers=None):
    turn = Turn(
        wire,
        [],
        message_id="m",
        context_id="c",
        answers=answers,
        timeout_seconds=seconds,
        poll_seconds=0.01,
        unreachable_seconds=unreachable,
        metadata=None,
    )
    with anyio.fail_after(30):
        return await turn.run()


async def test_a_message_that_never_arrived_is_sent_again():
    wire = Wire([REFUSED, REFUSED, REFUSED, WORKING])
    reply = await run(wire, unreachable=60)
    assert (reply.state, wire.sent) == (State.COMPLETED, 4)


async def test_a_message_that_may_have_arrived_is_not():
    wire = Wire([BROKEN])
    reply = await run(wire, unreachable=60)
    assert (reply.state, reply.error_type) == (State.UNREACHABLE, "infra_error")
    assert (wire.sent, reply.error_message) == (1, "connection broke")


async def test_unreachable_takes_three_attempts_and_the_time():
    wire = Wire([REFUSED])
    reply = await run(wire, unreachable=0)
    assert (reply.state, wire.sent) == (State.UNREACHABLE, 3)
    wire = Wire([REFUSED])
    started = anyio.current_time()
    await run(wire, unreachable=0.2)
    assert anyio.current_time() - started >= 0.2
    assert wire.sent > 3


async def test_polls_that_fail_in_between_do_not_matter():
    looks = [BROKEN, BROKEN, WORKING, BROKEN, BROKEN, DONE]
    reply = await run(Wire([WORKING], looks), unreachable=0)
    assert (reply.state, reply.text) == (State.COMPLETED, "ok")


async def test_an_agent_that_went_away():
    wire = Wire([WORKING], [BROKEN])
    reply = await run(wire, unreachable=0)
    assert (reply.state, reply.error_type) == (State.UNREACHABLE, "infra_error")
    assert (wire.looked, wire.cancelled) == (3, ["t1"])
    assert reply.task_id == "t1"


async def test_an_agent_that_forgot_the_task():
    wire = Wire([WORKING], [LOST_TASK])
    reply = await run(wire, unreachable=60)
    assert (reply.state, wire.looked) == (State.UNREACHABLE, 1)
    assert reply.error_code == "-32001"


async def test_declared_url_that_is_not_there_falls_back_once():
    wire = Wire([NOT_THERE, WORKING])
    assert (await run(wire)).state is State.COMPLETED
    wire = Wire([NOT_THERE])
    reply = await run(wire)
    assert (reply.state, reply.error_code) == (State.UNREACHABLE, "HTTP 404")
    assert wire.sent == 2


async def test_old_question_is_not_the_answer():
    asked = Seen(State.INPUT_REQUIRED, "t1", "c1", stamp="asked")
    looks = [asked, asked, asked, DONE]  # the first look is before the message
    wire = Wire([asked], looks)
    assert (await run(wire, answers="t1")).state is State.COMPLETED
    again = Seen(State.INPUT_REQUIRED, "t1", "c1", stamp="asked again")
    assert (
        await run(Wire([again], [asked]), answers="t1")
    ).state is State.INPUT_REQUIRED


async def test_timeout_keeps_what_is_known():
    seen = Seen(None, "t1", "c1", ({"kind": "text", "text": "so far"},), stamp="w")
    wire = Wire([seen], [seen])
    reply = await run(wire, seconds=0.1)
    assert (reply.state, reply.text) == (State.TIMEOUT, "so far")
    assert wire.cancelled == ["t1"]
