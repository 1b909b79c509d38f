"""What a user's answer means for a conversation (spec, task steps, 7.3)."""

from __future__ import annotations

import json

import pytest

from pytest_harbor.graphs.users import UserAnswer, read_user_answer, to_user
from pytest_harbor.protocols.reply import Seen, State, conclude

FILE = {"kind": "file", "file": {"uri": "https://example.org/a.png"}}


def answer(*parts, state=State.COMPLETED):
    seen = Seen(state, "t", "c", tuple(map(part, parts)))
    return conclude(seen, state, message_id="m", context_id="c")


def part(content):
    return {"kind": "text", "text": content} if isinstance(content, str) else content


def data(**fields):
    return {"kind": "data", "data": fields}


def says(text, **fields):
    return UserAnswer((part(text),), fields=fields)


DONE = json.dumps({"message": "bye", "done": True})
NEXT = json.dumps({"message": "the atlas", "done": False, "mood": "calm"})


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [
        (answer(NEXT), says("the atlas", mood="calm")),
        (answer(f"```json\n{NEXT}\n```"), says("the atlas", mood="calm")),
        (
            answer("", data(structured_output=json.loads(NEXT))),
            says("the atlas", mood="calm"),
        ),
        (answer(DONE), UserAnswer(end_reason="user_done")),
        (answer("in plain words"), says("in plain words")),
        (answer("two", "parts"), says("two\nparts")),
        # Not that object: text, as it is.
        (answer('{"message": "x"}'), says('{"message": "x"}')),
        (answer('{"message": "x", "done": 1}'), says('{"message": "x", "done": 1}')),
        (answer('{"message": 1, "done": true}'), says('{"message": 1, "done": true}')),
        (
            answer('{"message": " ", "done": false}'),
            UserAnswer(end_reason="user_silent"),
        ),
        (answer(), UserAnswer(end_reason="user_silent")),
        (answer(" \n"), UserAnswer(end_reason="user_silent")),
        (answer(NEXT, state=State.FAILED), UserAnswer(end_reason="user_failed")),
        (answer(NEXT, state=State.TIMEOUT), UserAnswer(end_reason="user_timeout")),
        (
            answer("x", state=State.INPUT_REQUIRED),
            UserAnswer(end_reason="user_input-required"),
        ),
    ],
)
def test_an_agent_that_plays_the_user(reply, meaning):
    assert read_user_answer(reply, is_person=False) == meaning


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [
        (answer(DONE), says(DONE)),
        (answer("look:", FILE), UserAnswer((part("look:"), FILE))),
        (answer("", FILE), UserAnswer((FILE,))),
        (answer("two", "parts"), UserAnswer((part("two"), part("parts")))),
        (answer(" "), UserAnswer(end_reason="user_silent")),
        (answer("x", state=State.REJECTED), UserAnswer(end_reason="user_rejected")),
    ],
)
def test_a_person_is_taken_at_their_word(reply, meaning):
    assert read_user_answer(reply, is_person=True) == meaning


def test_the_user_gets_the_parts_as_they_are():
    parts = (part("see"), part(" "), data(a=1), FILE)
    # An empty text is no part that a server takes.
    assert to_user(answer(*parts, "")) == parts
    assert to_user(answer(" ", "")) == ()


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [
        (answer('{"message": "x", "mood": 1}'), says("x", mood=1)),
        (answer(DONE), UserAnswer(end_reason="user_done")),
        (answer('{"say": "x"}'), says('{"say": "x"}')),
        (
            answer('{"message": "x", "done": "no"}'),
            says('{"message": "x", "done": "no"}'),
        ),
    ],
)
def test_a_format_of_the_task_s_own_may_lack_done(reply, meaning):
    assert read_user_answer(reply, is_person=False, may_lack_done=True) == meaning
