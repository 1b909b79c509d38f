"""Command-line agents in step tasks: deployed by the name they are declared under."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

# pytester forgets what a run in this process imported, and protobuf's extension, imported
# a second time, ends the process: it is loaded here, once for all.
from pytest_harbor.protocols import a2a_wire  # noqa: F401

if TYPE_CHECKING:
    from scratch_project import Project

AGENTS = """
[agents.plain]
description = "answers with what it was told"
command = ["cat", "{instruction}"]
network = false

[agents.keyed]
extends = "plain"
env = { KEY = "${MY_KEY}" }
"""


@pytest.fixture
def desk(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("MY_KEY", raising=False)
    project.file("agents.toml", AGENTS)
    project.pytester.makeini(
        "[pytest]\nfilterwarnings = error\nharbor_agents_file = agents.toml\n"
    )
    return project


def steps(agent):
    return [
        {
            "id": "up",
            "type": "deploy_agent",
            "a2a_agent_id": agent,
            "agent_name": "clerk",
        },
        {
            "id": "ask",
            "type": "prompt_agent",
            "agent_name": "clerk",
            "prompt_id": "atlas",
            "prompt": "Where is the atlas?",
        },
    ]


def test_a_step_task_deploys_one(desk: Project) -> None:
    desk.file("talk.task.json", json.dumps(steps("plain")))
    result = desk.run()
    result.assert_outcomes(passed=1)
    (context,) = desk.latest.rglob("context.json")
    (response,) = json.loads(context.read_text())["prompt_responses"]
    assert response["response"] == "Where is the atlas?"


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("plian", "*no agent 'plian'*did you mean 'plain'*"),
        ("keyed", "*environment variable 'MY_KEY' is not set*"),
    ],
)
def test_one_that_is_not_there_or_lacks_a_key(desk: Project, agent, message) -> None:
    desk.file("talk.task.json", json.dumps(steps(agent)))
    result = desk.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


def test_a_python_test_deploys_one(desk: Project) -> None:
    desk.file(
        "test_talk.py",
        "def test_talk(deployed_agent):\n"
        "    clerk = deployed_agent('plain')\n"
        "    assert clerk.prompt('hello').response == 'hello'\n",
    )
    desk.run().assert_outcomes(passed=1)


@pytest.mark.slow
def test_a_python_test_keeps_its_secrets(
    desk: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "squeamish-ossifrage"
    monkeypatch.setenv("MY_KEY", secret)
    run = ["sh", "-c", "echo $KEY; echo $KEY >&2"]
    script = {"answers": [{"do": [{"run": run, "save": "said"}], "answer": "{{said}}"}]}
    desk.file(
        "test_talk.py",
        f"""
import json

def test_talk(deployed_agent):
    script = {json.dumps(json.dumps(script))}
    variables = {{"SCRIPTED_AGENT": script, "KEY": "${{MY_KEY}}"}}
    clerk = deployed_agent("scripted", env_vars=variables)
    assert clerk.prompt("hello").response == "no secret"
""",
    )
    result = desk.run()
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line(f"*{secret}*")
    files = [path for path in desk.latest.resolve().rglob("*") if path.is_file()]
    assert any("trajectory-" in path.name for path in files)
    assert not [path for path in files if secret.encode() in path.read_bytes()]
