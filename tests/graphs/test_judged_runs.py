"""Whole runs on the local sandbox: an env, scripted agents, a user, judges, hand-off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_harbor.errors import JUDGE_ERROR
from pytest_harbor.graphs.built_in_agents import built_in_agents
from pytest_harbor.graphs.steps.api import RunSettings
from step_bundles import agent_up, grade

# Each starts two to four servers.
pytestmark = pytest.mark.slow

MAIL_SERVER = (Path(__file__).parents[1] / "servers" / "mail_env.py").read_text()
INBOX = {"inbox": [{"subject": "Offsite", "date": "12 May"}]}
SEARCH = {"call": "email_search", "arguments": {"query": "Offsite"}, "save": "found"}
CHART = "/app/artifact/chart.svg"


def scripted(*answers):
    """Files of an agent that plays these answers."""
    return {
        "agent.toml": 'command = ["python", "-m", "pytest_harbor.agents.scripted"]\n',
        "script.json": json.dumps(list(answers)),
    }


def grades(*scores):
    rows = [
        {"id": f"c{number}", "score": score, "justification": "seen"}
        for number, score in enumerate(scores, 1)
    ]
    return {"results": rows}


def kept(url):
    return json.loads(Path(url.removeprefix("file://")).read_text())


def up(name, **fields):
    return agent_up(id=f"{name}-up", a2a_agent_id=name, agent_name=name, **fields)


@pytest.fixture
def office(library):
    """A mail env with an inbox, and a folder per scripted agent."""
    library.files |= {
        "envs/mail/env.toml": 'command = ["python", "server.py"]\n'
        'environment_name = "mail"\n',
        "envs/mail/server.py": MAIL_SERVER,
        "artifacts/inbox/artifact.toml": 'type = "environment"\n'
        'environment_name = "mail"\n',
        "artifacts/inbox/inbox.json": json.dumps(INBOX),
    }

    def hire(name, *answers):
        for file, text in scripted(*answers).items():
            library.files[f"agents/{name}/{file}"] = text

    return hire


def test_the_six_steps_with_a_judge_that_is_deployed_for_it(office, run_steps):
    office(
        "assistant",
        {
            "do": [SEARCH, {"write": CHART, "text": "<svg/>"}],
            "answer": "It is on {{found.0.date}}.",
        },
    )
    office(
        "judge",
        {
            # What it can open in its own sandbox, it can grade by.
            "do": [{"run": ["cat", "/tmp/prompt_trajectory.json"], "save": "record"}],
            "when": "It is on 12 May",
            "answer": {
                "results": [
                    {"id": "c1", "score": 1, "justification": "{{record}}"},
                ]
            },
        },
    )
    result = run_steps(
        {"id": "up", "type": "deploy_env", "env_id": "mail", "depends_on": []},
        {
            "id": "inbox",
            "type": "load_artifact",
            "env_id": "mail",
            "artifact_id": "inbox",
            "depends_on": ["up"],
        },
        up("assistant", env_ids=["mail"], depends_on=["up"]),
        {
            "id": "ask",
            "type": "prompt_agent",
            "agent_name": "assistant",
            "prompt_id": "reply",
            "prompt": "When is the offsite?",
            "depends_on": ["inbox", "assistant-up"],
        },
        grade(judge_a2a_agent_id="judge", depends_on=["ask"]),
        {
            "id": "take",
            "type": "collect_artifacts",
            "agent_name": "assistant",
            "artifact_paths": ["chart.svg"],
            "depends_on": ["ask"],
        },
    )
    assert result.outcome == "passed", result.failure_reason
    reply = result.context.response("reply")
    assert reply.response == "It is on 12 May."
    assert reply.tool_call_count == 2
    entry = result.context.metadata["verifications"]["manners"]
    seen = json.loads(entry["results"][0]["justification"])
    assert seen == kept(reply.agent_trajectory_object_url)
    assert [one.agent_name for one in result.context.deployed_agents] == ["assistant"]
    # The rubric and the collection hang on the prompt alone, and go on together.
    first, second = result.step("grade"), result.step("take")
    assert second.started_at < first.started_at + first.seconds


def test_two_agents_hand_a_file_over_and_the_second_judges_by_it(office, run_steps):
    office("painter", {"do": [{"write": CHART, "text": "<svg/>"}], "answer": "Done."})
    read = {"run": ["cat", "/tmp/file_artifacts/chart.svg"], "save": "chart"}
    found = {"id": "c1", "score": 1, "justification": "{{chart}}"}
    office(
        "auditor",
        {"do": [read], "when": "chart.svg", "answer": {"results": [found]}},
    )
    result = run_steps(
        up("painter", depends_on=[]),
        up("auditor", depends_on=[]),
        {
            "id": "ask",
            "type": "prompt_agent",
            "agent_name": "painter",
            "prompt_id": "reply",
            "prompt": "Paint.",
        },
        {"id": "take", "type": "collect_artifacts", "agent_name": "painter"},
        {
            "id": "pass-on",
            "type": "load_artifact",
            "agent_name": "auditor",
            "artifact_from_step_id": "take",
        },
        grade(agent_name="auditor"),
    )
    assert result.outcome == "passed", result.failure_reason
    (row,) = result.context.metadata["verifications"]["manners"]["results"]
    assert row["justification"] == "<svg/>"


def test_a_conversation_graded_turn_by_turn(office, run_steps):
    office(
        "clerk",
        {"when": "^Help", "answer": "What do you look for?"},
        {"when": "atlas", "answer": "Shelf 4."},
    )
    office(
        "visitor",
        {"when": "look for", "answer": {"message": "The atlas.", "done": False}},
        {"answer": {"message": "Thanks.", "done": True}},
    )
    listing = {"run": ["ls", "/tmp/prompt_trajectory"], "save": "turns"}
    found = {"id": "c1", "score": 0, "justification": "{{turns}}"}
    result = run_steps(
        up("clerk", depends_on=[]),
        up("visitor", depends_on=[]),
        {
            "id": "serve",
            "type": "prompt_agent",
            "agent_name": "clerk",
            "prompt_id": "reply",
            "prompt": "Help the reader.",
            "max_conversation_turns": 5,
            "user_agent_name": "visitor",
        },
        agent_up(
            id="judge-up",
            agent_name="judge",
            a2a_agent_id="scripted",
            env_vars={
                "SCRIPTED_AGENT": json.dumps(
                    [{"do": [listing], "answer": {"results": [found]}}]
                )
            },
            depends_on=[],
        ),
        grade(agent_name="judge"),
        agents=built_in_agents(),
    )
    assert result.outcome == "scored_below", result.failure_reason
    reply = result.context.response("reply")
    assert reply.response == "Shelf 4."
    (row,) = result.context.metadata["verifications"]["manners"]["results"]
    assert row["justification"] == "turn_01.json\nturn_02.json"


def test_a_judge_of_prose_is_an_error_and_everything_ends(office, run_steps):
    office("assistant", {"answer": "Hello."})
    office("judge", {"when": ".", "answer": "Well done, 10 of 10!"})
    result = run_steps(
        up("assistant", depends_on=[]),
        {
            "id": "ask",
            "type": "prompt_agent",
            "agent_name": "assistant",
            "prompt_id": "reply",
            "prompt": "Hi.",
        },
        grade(),
        settings=RunSettings(default_agent="judge"),
    )
    assert result.outcome == "failed"
    step = result.step("grade")
    assert (step.failure_kind, step.is_infrastructure) == (JUDGE_ERROR, True)
    assert "it was: Well done, 10 of 10!" in step.error
    assert "verifications" not in result.context.metadata


def test_an_agent_that_crashes_mid_turn_leaves_its_reply(office, run_steps):
    office("assistant", {"do": [{"exit": 3}]})
    result = run_steps(
        up("assistant", depends_on=[]),
        {
            "id": "ask",
            "type": "prompt_agent",
            "agent_name": "assistant",
            "prompt_id": "reply",
            "prompt": "Hi.",
            "fail_task_on_error": False,
        },
        grade(judge_a2a_agent_id="assistant"),
    )
    step = result.step("ask")
    assert step.seconds < 30
    assert "exit code 3" in step.error
    assert result.context.response("reply").error_type == "infra_error"
    entry = result.context.metadata["verifications"]["manners"]
    assert entry["results"][0]["id"] == "prompt_error"
    assert entry["score"] == 0
