"""Frames and marks of an exec's connection, without a daemon."""

from __future__ import annotations

import pytest

from pytest_harbor.sandboxes.docker.stream import ExecStream

TOKEN = "5f" * 16


def frame(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def mark(text: str) -> bytes:
    return f"@@{TOKEN}:{text}@@".encode()


@pytest.fixture
def out():
    return bytearray()


@pytest.fixture
def err():
    return bytearray()


@pytest.fixture
def stream(out, err):
    return ExecStream(TOKEN, out.extend, err.extend)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_marks_are_found_however_the_bytes_are_cut(stream, out, err, size):
    data = (
        frame(2, mark("begin:4711:,bash,tar:2"))
        + frame(1, b"a@@b\0")
        + frame(2, b"oops@")
        + frame(2, b"@" + mark("end:3:3"))
        + frame(1, b"c@@" + mark("end:3:3"))
    )
    for at in range(0, len(data), size):
        stream.feed(data[at : at + size])
    assert stream.begin is not None
    assert stream.begin.start_ticks == 4711
    assert stream.begin.tools == {"bash", "tar"}
    assert stream.exit_code == 3
    assert stream.oom_kills == 3
    assert (bytes(out), bytes(err)) == (b"a@@b\0c@@", b"oops@@")


def test_both_streams_must_have_ended(stream, out):
    stream.feed(frame(2, mark("end:0:3")))
    assert stream.exit_code is None
    stream.feed(frame(1, b"late" + mark("end:0:3")))
    assert stream.exit_code == 0
    assert out == b"late"


def test_what_comes_after_the_end_is_not_of_this_command(stream, out):
    stream.feed(frame(1, b"mine" + mark("end:0:3") + b"daemon's"))
    stream.feed(frame(1, b"more"))
    assert out == b"mine"


def test_another_token_is_output(stream, out):
    other = b"@@" + b"0" * 32 + b":end:0@@"
    stream.feed(frame(1, other))
    stream.flush()
    assert stream.exit_code is None
    assert out == other


def test_a_mark_that_never_closes_is_output(stream, out):
    stream.feed(frame(1, f"@@{TOKEN}:".encode() + b"x" * 1000))
    assert len(out) == 1000 + len(TOKEN) + 3


def test_what_looked_like_a_mark_is_output_at_the_end(stream, out):
    stream.feed(frame(1, b"text@@5f5f"))
    assert out == b"text"
    stream.flush()
    assert out == b"text@@5f5f"


def test_tools_that_were_not_asked_for_are_unknown(stream):
    stream.feed(frame(2, mark("begin::?:")))
    assert stream.begin is not None
    assert stream.begin.tools is None
    assert stream.begin.start_ticks == 0
