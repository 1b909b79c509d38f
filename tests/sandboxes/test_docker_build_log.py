"""A build's log as people read it: whole lines, no colours, no progress rubble."""

from __future__ import annotations

from pathlib import Path

from pytest_harbor.sandboxes.docker.build import BuildLog, follow


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
    log = BuildLog(Path("environment"))
    assert follow(events, log) == "returned a non-zero code: 100"
    assert log.lines == (
        "Step 1/2 : RUN apt-get",
        words,
        " 10%",
        " 20%",
        "100%",
        "cut off",
    )


def test_a_build_that_ends_well_has_no_error():
    assert follow([{"stream": "Successfully built x\n"}], BuildLog(Path())) == ""


def test_the_step_that_it_is_at():
    log = BuildLog(Path("/t/environment"))
    assert log.line() == "building the image of /t/environment"
    log.feed("Step 2/3 : RUN apt-get install cowsay\nGet:1 http://deb\n")
    assert log.line().endswith("environment: step 2/3 RUN apt-get install cowsay")
    log.feed("#7 [stage-1 3/5] COPY . /app\n#7 DONE 0.1s\n#1 [internal] load\n")
    assert log.line().endswith(": step 3/5 COPY . /app")
