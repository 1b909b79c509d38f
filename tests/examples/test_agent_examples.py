"""examples/agents: a command-line agent of a project's own."""

from __future__ import annotations

from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2] / "examples" / "agents"


@pytest.fixture
def run_scribe(run_pytest):
    """Run pytest in the example, as its README says."""

    def run(*options):
        project = ("-c", PROJECT / "pyproject.toml", f"--rootdir={PROJECT}", PROJECT)
        return run_pytest(*project, *options)

    return run


@pytest.mark.slow
def test_an_agent_that_remembers_passes_all_steps(run_scribe):
    run = run_scribe("--harbor-agent=scribe", "--harbor-turn-sessions=continue")
    assert run.code == 0, run.output
    assert {record["task_id"] for record in run.records} == {
        "dear-diary",
        "thank-you-note",
    }
    assert all(record["warnings"] == [] for record in run.records)


@pytest.mark.slow
def test_without_memory_the_second_step_fails(run_scribe):
    run = run_scribe("--harbor-agent=scribe")
    assert run.code == 1
    rewards = {record["task_id"]: record["reward"] for record in run.records}
    assert rewards == {"dear-diary": 0.5, "thank-you-note": 1.0}


@pytest.mark.slow
def test_the_tasks_are_sound(run_scribe):
    run = run_scribe("--harbor-validate")
    assert run.code == 0, run.output
    assert run.output.count("unvalidated") == 0
