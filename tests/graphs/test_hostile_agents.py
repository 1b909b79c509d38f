"""What an agent cannot do to a run by what it answers."""

from __future__ import annotations

import json

import pytest

from pytest_harbor.errors import StepError
from pytest_harbor.graphs.run import MAX_ERROR_CHARACTERS
from pytest_harbor.graphs.steps.api import StepType
from pytest_harbor.tasks.steps.step import Step
from step_bundles import agent_up, ask

DEEP = '{"a": ' * 300 + "1" + "}" * 300
HUGE = "x" * 60_000


@pytest.mark.slow
def test_deep_json_is_no_result_and_a_long_excuse_is_cut(run_steps, library):
    script = [
        {"when": "deep", "answer": DEEP},
        {"when": "long", "state": "failed", "error": {"message": HUGE}},
    ]
    result = run_steps(
        agent_up(
            a2a_agent_id="scripted",
            env_vars={"SCRIPTED_AGENT": json.dumps({"name": "x", "answers": script})},
        ),
        ask(id="deep", prompt_id="deep", prompt="deep"),
        ask(id="long", prompt_id="long", prompt="long"),
    )
    assert [step.status for step in result.steps] == ["passed", "passed", "failed"]
    deep = result.context.response("deep")
    assert (deep.response, deep.structured_output) == (DEEP, None)
    (entry,) = result.context.metadata["failed_steps"]
    assert "xxx\n[... " in entry["error"]
    for text in (entry["error"], result.steps[2].error, result.failure_reason):
        assert len(text) < MAX_ERROR_CHARACTERS
    saved = (result.logs / "context.json").stat().st_size
    assert saved < 100_000


def test_a_card_that_no_record_can_hold(run_steps, library, monkeypatch):
    deep = json.loads("[" * 300 + "]" * 300)
    library.agent(card={"deep": deep})
    monkeypatch.setattr("pytest_harbor.graphs.servers._UNUSABLE_SECONDS", 0.1)
    result = run_steps(agent_up())
    (step,) = result.steps
    assert step.status == "failed"
    assert step.error.startswith("agent 'clerk' cannot be used: ")
    assert "answered JSON of more than 100 levels: {" in step.error
    assert result.logs is not None
    assert (result.logs / "context.json").exists()


def test_an_error_of_any_length_is_cut_in_the_middle(run_steps, library):
    async def fail(_, run):
        raise StepError(f"first{HUGE}last")

    result = run_steps(
        {"id": "f", "type": "fail"}, step_types={"fail": StepType(Step, fail)}
    )
    (entry,) = result.context.metadata["failed_steps"]
    for text in (entry["error"], result.steps[0].error):
        assert text.startswith("first")
        assert text.endswith("last")
        assert len(text) < MAX_ERROR_CHARACTERS + 100
