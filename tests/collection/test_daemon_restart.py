"""A Docker daemon that dies in the middle of a run: an outage, and nothing is left.

The daemon is the test's own; the common one is not touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from scratch_project import Project

    from private_daemon import Daemon

pytestmark = [pytest.mark.docker, pytest.mark.slow]

AGENT = """
import os
class Once:
    "Works for ever in the first try, and does nothing in the next ones."
    name = "once"
    tries = 0
    def run(self, turn):
        Once.tries += 1
        if Once.tries == 1:
            with open({began!r}, "w") as began:
                began.write("x")
            turn.sandbox.exec("sleep 600")
"""

IMPATIENT = """
from pytest_harbor.sandboxes.docker import client
client.RESTART_SECONDS = 0.5
"""


@pytest.fixture
def start(
    project: Project,
    daemon: Daemon,
    docker_image: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """Start pytest on tasks ``names``; returns when the first agent is at work."""
    monkeypatch.setenv("DOCKER_HOST", daemon.url)

    def run(*names: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        for name in names:
            project.graded(
                name,
                1,
                "[agent]\ntimeout_sec = 600\n[environment]\n"
                f'docker_image = "{docker_image}"\nnetwork_mode = "no-network"\n',
            )
        began = project.path / "began"
        os.mkfifo(began)
        project.file("my_agents.py", AGENT.format(began=os.fspath(began)))
        running = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "datasets", "-opythonpath=."),
                *("--harbor-agent=my_agents:Once", "--junitxml=j.xml", *options),
            ],
            cwd=project.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with began.open() as opened:
            assert opened.read() == "x"
        return running

    return run


def containers(daemon: Daemon) -> list[str]:
    client = daemon.client()
    try:
        return [container.name for container in client.containers.list(all=True)]
    finally:
        client.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_restarts_costs_a_try(project, daemon, start, number):
    running = start("t")
    daemon.end(number)
    daemon.start()
    out, _ = running.communicate(timeout=90)
    assert running.returncode == 0, out
    [row] = project.rows("rollouts.jsonl")
    assert row["reward"] == 1.0
    [failure] = project.rows("rollouts_failures.jsonl")
    assert failure["failure_kind"] == "harbor:sandbox_lost"
    assert "trouble" not in out
    assert containers(daemon) == []
    [case] = ET.parse(project.path / "j.xml").iter("testcase")
    assert list(case.iter("error")) == list(case.iter("failure")) == []


def test_a_daemon_that_stays_away_is_an_outage(project, daemon, start):
    project.file("conftest.py", IMPATIENT)
    running = start("t", "u", options=("--harbor-unavailable=skip",))
    try:
        daemon.end(signal.SIGKILL)
        out, _ = running.communicate(timeout=90)
    finally:
        daemon.start()
    # Never skipped: it was there when the run began.
    assert running.returncode == pytest.ExitCode.TESTS_FAILED, out
    assert "2 errors" in out
    kinds = [
        (row["task_id"], row["failure_kind"])
        for row in project.rows("rollouts_failures.jsonl")
    ]
    assert kinds == [
        ("t", "harbor:sandbox_lost"),
        ("t", "harbor:sandbox_start_failed"),
        ("u", "harbor:sandbox_start_failed"),
        ("u", "harbor:sandbox_start_failed"),
    ]
    assert len(list(ET.parse(project.path / "j.xml").iter("error"))) == 2
    [left] = containers(daemon)
    # It could not be removed, which is told with the command that does it ...
    assert f"docker rm -f -v {left}" in out
    # ... and it is gone with the next run.
    assert project.run_apart("--harbor-sweep").ret == 0
    assert containers(daemon) == []
