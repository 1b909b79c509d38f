"""Agents that the a2a-sdk serves, without our code, in both wire versions (spec 12)."""

from __future__ import annotations

import json

import anyio
import pytest

from pytest_harbor.protocols import a2a
from pytest_harbor.protocols.reply import State

pytestmark = pytest.mark.anyio


async def ask(sample, text, **options):
    async with await a2a.connect(sample[0], timeout_seconds=5) as agent:
        return await agent.send(text, **options)


async def test_card(sample):
    url, _, wire = sample
    async with await a2a.connect(url, timeout_seconds=5) as agent:
        assert (agent.card.name, agent.card.wire) == ("sample", wire)
        assert agent.card.url == f"{url}/rpc"


async def test_methods_on_the_wire(sample):
    _, executor, wire = sample
    executor.calls.clear()
    await ask(sample, "work 30", timeout_seconds=1)
    methods = list(dict.fromkeys(executor.calls))
    if wire == "0.3":
        expected = ["message/send", "tasks/get", "tasks/cancel"]
    else:
        expected = ["SendMessage", "GetTask", "CancelTask"]
    assert methods == [(method, wire) for method in expected]


async def test_completed(sample):
    reply = await ask(sample, "say hello", context_id="c1", message_id="m1")
    assert (reply.state, reply.text) == (State.COMPLETED, "hello")
    assert (reply.context_id, reply.message_id) == ("c1", "m1")
    assert reply.task_id
    assert reply.raw["status"]["state"] == "completed"
    assert (reply.error_type, reply.error_message) == (None, None)


async def test_message_instead_of_a_task(sample):
    reply = await ask(sample, "message at once")
    assert (reply.state, reply.text) == (State.COMPLETED, "at once")
    assert reply.task_id is None


async def test_failed_with_what_the_agent_told(sample):
    reply = await ask(sample, "fail no disk")
    assert (reply.state, reply.text) == (State.FAILED, "I cannot")
    assert (reply.error_type, reply.error_code) == ("infra_error", "E7")
    assert reply.error_message == "no disk"


async def test_an_exception_in_the_agent(sample):
    reply = await ask(sample, "crash boom")
    assert reply.state is State.FAILED
    assert reply.error_type == "agent_error"
    assert reply.error_message


@pytest.mark.parametrize(
    ("command", "state"),
    [
        ("reject", State.REJECTED),
        ("login", State.AUTH_REQUIRED),
        ("ask", State.INPUT_REQUIRED),
    ],
)
async def test_other_ends(sample, command, state):
    reply = await ask(sample, f"{command} which one")
    assert (reply.state, reply.text) == (state, "which one")
    failed = state is not State.INPUT_REQUIRED
    assert reply.error_type == ("agent_error" if failed else None)


async def test_answer_to_a_question_continues_its_task(sample):
    async with await a2a.connect(sample[0], timeout_seconds=5) as agent:
        asked = await agent.send("ask which one")
        reply = await agent.send(
            "say that one", task_id=asked.task_id, context_id=asked.context_id
        )
    assert (reply.state, reply.text) == (State.COMPLETED, "that one")
    assert reply.task_id == asked.task_id


async def test_texts_are_joined(sample):
    assert (await ask(sample, "lines one two")).text == "one\ntwo"


async def test_artifact_counts_when_the_status_is_silent(sample):
    reply = await ask(sample, "artifact forty-two")
    assert (reply.state, reply.text) == (State.COMPLETED, "forty-two")


async def test_data_parts(sample):
    typed = {"n": 2, "x": 1.5, "b": False, "l": [0, None], "big": 1e300}
    sent = json.dumps({"usage": {"tool_call_count": 3}, "structured_output": typed})
    reply = await ask(sample, f"data {sent}")
    assert reply.tool_call_count == 3
    # As text: 2 == 2.0, and protobuf makes floats of all numbers.
    told = json.dumps(reply.structured_output, sort_keys=True)
    assert told == json.dumps(typed, sort_keys=True)
    assert reply.text == "see the data"


async def test_parts_of_either_form_arrive(sample):
    file = {"bytes": "aGk=", "name": "a.txt", "mimeType": "text/plain"}
    parts = [
        {"kind": "text", "text": "echo"},
        {"kind": "data", "data": {"n": 1}},
        {"kind": "file", "file": file},
        {"url": "https://x.example/a.png", "mediaType": "image/png"},
    ]
    reply = await ask(sample, parts)
    picture = {"uri": "https://x.example/a.png", "mimeType": "image/png"}
    assert list(reply.parts) == [*parts[:3], {"kind": "file", "file": picture}]


async def test_timeout_cancels_the_task(sample):
    reply = await ask(sample, "work 30", timeout_seconds=1.5)
    assert (reply.state, reply.error_type) == (State.TIMEOUT, "timeout")
    assert reply.text == "working on it"
    assert "1.5 s" in reply.error_message
    assert reply.task_id in sample[1].cancelled


async def test_cancelled_caller_cancels_the_task(sample):
    _, executor, _ = sample
    before = len(executor.cancelled)
    executor.polled.clear()
    async with (
        await a2a.connect(sample[0], timeout_seconds=5) as agent,
        anyio.create_task_group() as group,
    ):
        group.start_soon(agent.send, "work 30")
        assert await anyio.to_thread.run_sync(executor.polled.wait, 5)
        group.cancel_scope.cancel()
    assert len(executor.cancelled) == before + 1


async def test_several_turns_at_once(sample):
    async with await a2a.connect(sample[0], timeout_seconds=5) as agent:
        replies = {}

        async def turn(number):
            replies[number] = (await agent.send(f"say {number}")).text

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(turn, number)
    assert replies == {number: str(number) for number in range(8)}
