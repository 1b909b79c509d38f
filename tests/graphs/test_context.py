"""The context of a run: its records, how they are written and taken back, and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pytest_harbor.errors import NotDeployed, StepError
from pytest_harbor.graphs.context import (
    Append,
    DefaultModel,
    DeployedAgent,
    DeployedEnv,
    DeployedSandbox,
    Journal,
    MarkRetried,
    PromptResponse,
    Put,
    RunContext,
    context_from_plain,
    context_to_plain,
)
from pytest_harbor.sandboxes.output import Masker

ENV = DeployedEnv(
    env_id="library",
    env_version=1,
    instance_id="library-1",
    mcp_url="http://127.0.0.1:1/mcp",
    mcp_server_name="library",
    environment_card={"name": "library"},
    sandbox_ids=("a",),
    metadata={"deploy_step_id": "library-up"},
)
AGENT = DeployedAgent(agent_name="clerk", a2a_url="http://127.0.0.1:2", instance_id="c")
RESPONSE = PromptResponse(prompt_id="serve", response="here", tool_call_count=2)


@pytest.fixture
def journal() -> Journal:
    return Journal(RunContext("run-1", metadata={"seed": {"a": 1}}))


def test_records_and_metadata_are_written_to_their_places(journal):
    box = DeployedSandbox("box", "b", "b-1", "local")
    journal.write(
        "s",
        ENV,
        AGENT,
        RESPONSE,
        box,
        Put("verifications", "manners", {"score": 1.0}),
        Append("loaded_urls", {"step_id": "s"}),
        Append("usersim_turn_outputs", "s", {"turn": 1}),
    )
    context = journal.context
    assert context.env("library") is ENV
    assert context.agent("clerk") is AGENT
    assert context.response("serve") is RESPONSE
    assert context.sandbox("box") is box
    assert context.metadata == {
        "seed": {"a": 1},
        "verifications": {"manners": {"score": 1.0}},
        "loaded_urls": [{"step_id": "s"}],
        "usersim_turn_outputs": {"s": [{"turn": 1}]},
    }


def test_what_is_not_there_is_named_in_the_formats_words(journal):
    with pytest.raises(NotDeployed) as caught:
        journal.context.agent("assistant")
    assert str(caught.value) == (
        "Agent with name 'assistant' not found in context.deployed_agents"
    )
    with pytest.raises(NotDeployed) as caught:
        journal.context.env("email")
    assert str(caught.value) == "Env 'email' not found in context.deployed_envs"
    with pytest.raises(StepError, match=r"'serve' not found in context\.prompt_resp"):
        journal.context.response("serve")
    with pytest.raises(
        NotDeployed, match=r"'box' not found in context\.deployed_sandb"
    ):
        journal.context.sandbox("box")


def test_undo_takes_back_what_those_steps_wrote_and_nothing_else(journal):
    context = journal.context
    journal.write("a", ENV, Put("verifications", "x", {"score": 1}))
    journal.write("b", AGENT, Put("verifications", "y", {"score": 0}))
    journal.write(None, Append("failed_steps", {"step_id": "b"}))
    journal.undo({"b", "c"})
    assert journal.context is context
    assert context.deployed_envs == [ENV]
    assert context.deployed_agents == []
    assert context.metadata["verifications"] == {"x": {"score": 1}}
    assert context.metadata["failed_steps"] == [{"step_id": "b"}]


def test_undo_is_not_fooled_by_values_that_changed_later(journal):
    entry = {"rows": []}
    journal.write("a", Put("verifications", entry))
    journal.write("b", Put("verifications", "x", 1))
    entry["rows"].append("from outside")
    journal.undo({"b"})
    assert journal.context.metadata["verifications"] == {"rows": []}
    journal.context.metadata["seed"]["a"] = 2
    journal.undo({"a"})
    assert journal.context.metadata == {"seed": {"a": 1}}


def test_a_write_that_cannot_be_made_leaves_nothing_of_itself(journal):
    journal.write("a", Put("name", "text"))
    with pytest.raises(TypeError):
        journal.write("b", ENV, Put("name", "inner", 1))
    assert journal.context.deployed_envs == []
    journal.undo({"a"})
    assert journal.context.metadata == {"seed": {"a": 1}}


@pytest.mark.parametrize(
    "change",
    [
        lambda deep: replace(AGENT, a2a_card=deep),
        lambda deep: Put("verifications", "v", deep),
        lambda deep: Append("usersim_turn_outputs", "s", deep),
    ],
)
def test_what_no_file_can_hold_is_refused(journal, change):
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(StepError, match="nested in more than 100 levels"):
        journal.write("s", change(deep))
    assert context_to_plain(journal.context)


def test_the_first_default_model_stays(journal):
    journal.write("a", DefaultModel("small"))
    journal.write("b", DefaultModel("large"))
    assert journal.context.default_agent_model == "small"
    journal.undo({"a"})
    assert journal.context.default_agent_model == "large"


def test_a_retry_that_succeeds_marks_all_failures_of_its_step(journal):
    for step in ("a", "b", "a"):
        journal.write(None, Append("failed_steps", {"step_id": step}))
    journal.write(None, MarkRetried("a"))
    assert journal.context.metadata["failed_steps"] == [
        {"step_id": "a", "retried": True},
        {"step_id": "b"},
        {"step_id": "a", "retried": True},
    ]


def test_json_holds_all_of_it_with_secrets_masked(journal):
    secret = "s3cret-key"
    journal.write(
        "a",
        ENV,
        AGENT,
        RESPONSE,
        PromptResponse("p", secret, structured_output={"key": [secret]}),
        Put("x", f"token {secret}", secret),
    )
    plain = context_to_plain(journal.context)
    assert context_from_plain(json.loads(json.dumps(plain))) == journal.context
    text = json.dumps(context_to_plain(journal.context, Masker([secret])))
    assert secret not in text
    assert "token ***" in text


def test_an_agents_url_goes_by_both_its_names():
    assert AGENT.api_url == AGENT.a2a_url


@pytest.mark.parametrize(
    ("fields", "has_error"),
    [
        ({}, False),
        ({"error_type": "timeout"}, True),
        ({"error_code": "500"}, True),
        ({"error_message": "no type given"}, True),
    ],
)
def test_any_sign_of_an_error_counts_as_one(fields, has_error):
    assert PromptResponse("p", "", **fields).has_error is has_error
