"""examples/python: the code of the documentation, run."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_examples_in_python(run_pytest):
    run = run_pytest("examples/python")
    assert run.code == 0, run.output
    assert len(run.cases) >= 5


@pytest.mark.slow
def test_the_agent_works_on_the_command_line(run_pytest):
    run = run_pytest(
        "examples/local/guest-list",
        "--harbor-agent",
        "my_agents:ShellAgent",
        "-o",
        "pythonpath=examples/python",
    )
    assert run.code == 0, run.output
    [name] = [n for n in run.cases if n.startswith("guest-list[")]
    assert run.properties(name)["harbor.agent"] in {"shell", "my_agents:ShellAgent"}
