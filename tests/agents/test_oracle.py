"""The oracle: what it places, runs and lacks (spec 13)."""

from __future__ import annotations

import anyio
import pytest

from pytest_harbor.agents.api import AgentTurn
from pytest_harbor.agents.oracle import OracleAgent, has_whole_solution, shortfall
from pytest_harbor.errors import AgentError
from pytest_harbor.sandboxes.api import ExecResult
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.load import load_task
from pytest_harbor.tasks.folder.plan import plan_episode
from scripted_sandbox import ScriptedProvider, ScriptedSandbox
from task_folders import write_steps_task, write_task


def plan_of(folder):
    return plan_episode(load_task(folder), Settings(), agent="oracle")


@pytest.fixture
def sandbox():
    return ScriptedSandbox(ScriptedProvider(), "box")


def test_ignored_files_of_the_solution_stay_behind(tmp_path, sandbox):
    folder = write_task(
        tmp_path / "task",
        solve="true",
        files={"solution/.harborignore": "notes.md", "solution/notes.md": "private"},
    )
    uploads, _ = OracleAgent().placement(plan_of(folder).turns[0])
    anyio.run(sandbox.upload, uploads)
    assert list(sandbox.files) == ["/solution/solve.sh"]


def run(sandbox, folder, tmp_path):
    turn = plan_of(folder).turns[0]
    given = AgentTurn("", sandbox, "task", 0, "alice", 2.0, tmp_path, {"A": "1"}, turn)
    return anyio.run(OracleAgent().run, given)


def test_script_runs_as_the_turns_user_with_its_budget(tmp_path, sandbox):
    sandbox.owner.answer = lambda command: ExecResult(3, "said", "")
    folder = write_task(tmp_path / "task", solve="true")
    assert run(sandbox, folder, tmp_path).exit_code == 3
    [command] = sandbox.owner.commands
    assert command.argv == ["bash", "/solution/solve.sh"]
    assert (command.user, command.env, command.timeout_seconds) == (
        "alice",
        {"A": "1"},
        2.0,
    )
    assert (tmp_path / "oracle.txt").read_text() == "said"


def test_overrun_is_an_agent_timeout(tmp_path, sandbox):
    sandbox.owner.answer = lambda command: ExecResult(None, "", "", timed_out=True)
    with pytest.raises(AgentError, match=r"solve.sh ran out of its 2 s") as caught:
        run(sandbox, write_task(tmp_path / "task", solve="true"), tmp_path)
    assert caught.value.kind == "agent_timeout"


def test_reference_answer_is_its_message(tmp_path, sandbox):
    folder = write_task(tmp_path / "task", files={"solution/answer.md": "42"})
    assert run(sandbox, folder, tmp_path).text == "42"
    assert sandbox.owner.calls == []


@pytest.mark.parametrize(
    ("files", "whole", "lacks"),
    [
        ({"solution/solve.sh": ""}, True, None),
        ({"solution/answer.md": "42"}, True, None),
        ({}, False, "task has no solution/: the oracle did nothing"),
        (
            {"solution/data": ""},
            False,
            "task has a solution/ without solve.sh: the oracle did nothing",
        ),
    ],
)
def test_what_a_task_lacks(tmp_path, files, whole, lacks):
    plan = plan_of(write_task(tmp_path / "task", files=files))
    assert has_whole_solution(plan) is whole
    assert shortfall(plan.turns[0]) == lacks


def test_a_step_folder_without_a_script_is_no_fallback(tmp_path):
    folder = write_steps_task(
        tmp_path / "task",
        "a",
        "b",
        files={"solution/solve.sh": "", "steps/b/solution/data": ""},
    )
    plan = plan_of(folder)
    assert shortfall(plan.turns[0]) is None
    assert "without solve.sh" in shortfall(plan.turns[1])
    assert not has_whole_solution(plan)
