"""What is left of a run that was killed (field notes 4.9)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_harbor.results import summary

if TYPE_CHECKING:
    from scratch_project import Project

AGENT = """
import os, signal
class Last:
    name = "last"
    def run(self, turn):
        if turn.step == "d":
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_run_keeps_what_ended_and_names_what_ran(project: Project) -> None:
    project.file("my_agents.py", AGENT)
    for name in "abcd":
        project.task(name)
    result = project.run_apart(
        "datasets", "-opythonpath=.", "--harbor-agent=my_agents:Last"
    )
    assert result.ret == -signal.SIGKILL
    ended = [row["task_id"] for row in project.rows("rollouts.jsonl")]
    started = [row["task_id"] for row in project.rows("started.jsonl")]
    assert (ended, started) == (["a", "b", "c"], ["a", "b", "c", "d"])
    found = summary.summarize(project.latest.resolve())
    assert found.passed == 3
    assert found.unfinished == ("datasets/d/task.toml::d[my_agents:Last]",)


@pytest.mark.slow
def test_two_sessions_at_once_do_not_mix(project: Project) -> None:
    project.task("a")
    project.graded("b", 0)
    commands = [
        [sys.executable, "-m", "pytest", "-q", f"datasets/{name}"] for name in "ab"
    ]
    sessions = [
        subprocess.Popen(command, cwd=project.path, stdout=subprocess.DEVNULL)
        for command in commands
    ]
    assert [session.wait() for session in sessions] == [0, 1]
    runs = [path for path in project.latest.parent.iterdir() if path.name[0].isdigit()]
    tasks = {
        json.loads(line)["task_id"]: os.fspath(run)
        for run in runs
        for line in (run / "rollouts.jsonl").read_text().splitlines()
    }
    assert len(runs) == len(set(tasks.values())) == 2
    assert project.latest.resolve() in runs
