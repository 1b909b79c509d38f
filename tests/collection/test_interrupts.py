"""Ctrl-C and SIGTERM: each ends the session once, however often it comes (field notes 4.4)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_harbor.collection.interrupts import MESSAGE, Interrupts

if TYPE_CHECKING:
    from scratch_project import Project


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """As in a pytest of its own."""
    before = [
        (signal.SIGTERM, signal.signal(signal.SIGTERM, signal.SIG_DFL)),
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
    ]
    yield
    for number, handler in before:
        signal.signal(number, handler)


def test_both_are_taken_over_and_given_back() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        interrupts = Interrupts()
        interrupts.arm()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        interrupts.disarm()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_impatience_only_gets_an_answer(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    interrupts = Interrupts()
    interrupts.arm()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(number)
    assert capfd.readouterr().err == MESSAGE.decode()
    interrupts.goes_on()  # as after a Ctrl-C that --pdb made a failure
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    interrupts.disarm()


def test_a_handler_of_somebody_else_stays() -> None:
    def theirs(*_: object) -> None:
        return None

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, theirs)
    interrupts = Interrupts()
    interrupts.arm()
    interrupts.disarm()
    assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT) is theirs


SLOW = """
class Slow:
    name = "slow"
    def run(self, turn):
        turn.sandbox.exec("sleep 600")
"""

PRESS_AGAIN = """
import os, signal
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_harbor_event(event):
    if event.phase == "agent":
        press()

@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt():
    press()

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish():
    press()
    yield
    press()

def press():
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.slow
def test_pressed_at_every_moment(project: Project) -> None:
    project.file("my_agents.py", SLOW)
    project.file("conftest.py", PRESS_AGAIN)
    project.task("t")
    result = project.run_apart(
        *("datasets", "-opythonpath=.", "--harbor-agent=my_agents:Slow"),
        "--junitxml=j.xml",
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "Traceback" not in str(result.stderr)
    assert "still removing" in str(result.stderr)
    ET.parse(project.path / "j.xml")
    result.stdout.fnmatch_lines(
        ["1 episode: 0 passed, 0 failed, 1 error; *", "interrupted: *t[[]my_agents*"]
    )


@pytest.mark.slow
def test_pressed_twice_with_workers(project: Project) -> None:
    began = project.path / "began"
    os.mkfifo(began)
    tell = f"        open({os.fspath(began)!r}, 'w').write('x')\n"
    project.file(
        "my_agents.py", SLOW.replace("(self, turn):\n", f"(self, turn):\n{tell}")
    )
    project.task("t")
    project.task("u")
    command = [
        *(sys.executable, "-m", "pytest", "datasets", "-n2", "-opythonpath=."),
        *("--harbor-agent=my_agents:Slow", "--junitxml=j.xml"),
    ]
    running = subprocess.Popen(
        command,
        cwd=project.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # For reading and writing: no end of file between the two who write.
    both = os.open(began, os.O_RDWR)
    for _ in range(2):
        assert os.read(both, 1) == b"x"
    os.close(both)
    os.killpg(running.pid, signal.SIGINT)
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == pytest.ExitCode.INTERRUPTED
    assert "Traceback" not in err
    assert "2 episodes: 0 passed, 0 failed, 2 errors" in out
    ET.parse(project.path / "j.xml")
