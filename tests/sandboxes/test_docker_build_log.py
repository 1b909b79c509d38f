"""A build's log as people read it: whole lines, no colours, no progress rubble."""

from __future__ import annotations

from collections import deque

from pytest_harbor.sandboxes.docker.build import _follow


def test_fragments_in_colours_become_lines():
    words = "E: no such package"
    events = [
        {"stream": "Step 1/2 : RUN apt-get\n"},
        *({"stream": f"\x1b[91m{letter}\x1b[0m"} for letter in words),
        {"stream": "\x1b[91m\n\x1b[0m"},
        {"stream": " 10%\r 20%\r100%\n\n"},
        {"stream": "cut off"},
        {"error": "returned a non-zero code: 100\n"},
    ]
    log: deque[str] = deque(maxlen=30)
    assert _follow(events, log) == "returned a non-zero code: 100"
    assert list(log) == [
        "Step 1/2 : RUN apt-get",
        words,
        " 10%",
        " 20%",
        "100%",
        "cut off",
    ]


def test_a_build_that_ends_well_has_no_error():
    assert _follow([{"stream": "Successfully built x\n"}], deque()) == ""
