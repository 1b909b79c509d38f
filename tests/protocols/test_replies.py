"""What a turn comes to (spec 3.3, 7.2): pure."""

from __future__ import annotations

import pytest

from pytest_harbor.protocols.excerpts import excerpt
from pytest_harbor.protocols.reply import Seen, State, conclude, last_json_object


def text(words):
    return {"kind": "text", "text": words}


def data(**fields):
    return {"kind": "data", "data": fields}


def end(state, message=(), artifacts=(), **options):
    seen = Seen(state, "t1", "c1", tuple(message), tuple(artifacts), raw={"id": "t1"})
    return conclude(seen, state, message_id="m1", context_id="c0", **options)


def test_text_of_the_status_message():
    reply = end(State.COMPLETED, [text("a"), data(x=1), text("b")], [text("artifact")])
    assert reply.text == "a\nb"
    assert reply.parts == (text("a"), data(x=1), text("b"))
    assert (reply.task_id, reply.context_id, reply.raw) == ("t1", "c1", {"id": "t1"})
    assert reply.completed


def test_text_of_artifacts_when_the_message_has_none():
    reply = end(State.COMPLETED, [data(x=1)], [text("from"), text("artifacts")])
    assert reply.text == "from\nartifacts"
    assert reply.parts == (data(x=1), text("from"), text("artifacts"))


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        ([], None),
        ([data(usage={"tool_call_count": 4})], 4),
        ([data(tool_call_count=2)], 2),
        ([data(usage={"tool_call_count": 4}, tool_call_count=2)], 4),
        ([data(usage=3), data(usage={"tool_call_count": 1.0})], 1),
        ([data(usage={"tool_call_count": True})], None),
        ([data(usage={"tool_call_count": "many"})], None),
    ],
)
def test_tool_calls(parts, count):
    assert end(State.COMPLETED, [text("x"), *parts]).tool_call_count == count


def test_counts_in_artifacts_are_read_too():
    reply = end(State.COMPLETED, [text("x")], [data(usage={"tool_call_count": 9})])
    assert reply.tool_call_count == 9
    assert reply.parts == (text("x"),)


def test_typed_output_before_the_text():
    parts = [text('{"from": "text"}'), data(structured_output={"from": "part"})]
    assert end(State.COMPLETED, parts).structured_output == {"from": "part"}
    assert end(State.COMPLETED, parts[:1]).structured_output == {"from": "text"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("none", None),
        ('{"a": 1} and {"b": {"c": 2}} end', {"b": {"c": 2}}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('{"a": 1} {broken', {"a": 1}),
        ("{" * 50_000, None),
        ('{"a": "}{"}', {"a": "}{"}),
        ("[1, 2]", None),
        ('[{"a": 1}]', {"a": 1}),
        ('{"a": ' + '"x' + "x" * 300_000 + '"}', {"a": "x" * 300_001}),
    ],
)
def test_last_json_object(words, found):
    assert last_json_object(words) == found


TOLD = [
    text("I cannot"),
    data(error_type="infra_error", error_code=7, error_message="m"),
]


@pytest.mark.parametrize(
    ("state", "parts", "expected"),
    [
        (State.COMPLETED, TOLD, (None, None, None)),
        (State.INPUT_REQUIRED, TOLD, (None, None, None)),
        (State.FAILED, TOLD, ("infra_error", "7", "m")),
        (State.FAILED, [text("sorry")], ("agent_error", None, "sorry")),
        (
            State.CANCELED,
            [],
            ("agent_error", None, "the task ended as canceled, without a word"),
        ),
        (
            State.REJECTED,
            [data(error_type="weird")],
            ("agent_error", None, "the task ended as rejected, without a word"),
        ),
        (State.AUTH_REQUIRED, [text("log in")], ("agent_error", None, "log in")),
        (State.TIMEOUT, TOLD, ("timeout", None, "ours")),
        (State.UNREACHABLE, TOLD, ("infra_error", None, "ours")),
    ],
)
def test_errors(state, parts, expected):
    ours = "ours" if state in (State.TIMEOUT, State.UNREACHABLE) else None
    reply = end(state, parts, error=ours)
    assert (reply.error_type, reply.error_code, reply.error_message) == expected
    assert reply.completed is (state is State.COMPLETED)


def test_nothing_was_seen():
    reply = conclude(
        None, State.TIMEOUT, message_id="m1", context_id="c0", error="late"
    )
    assert (reply.text, reply.task_id, reply.context_id) == ("", None, "c0")
    assert (reply.error_type, reply.error_message) == ("timeout", "late")


def test_excerpt():
    assert excerpt(b"a\n\n\tb\x00\x1b[31mc") == "a b [31mc"
    assert excerpt("x" * 600) == "x" * 500 + "..."
    assert excerpt(b"\xff\xfe") == "\ufffd\ufffd"
