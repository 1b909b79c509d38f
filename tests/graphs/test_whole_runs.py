"""Whole runs on the local sandbox, in the shape of the format's examples."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio
import pytest

from pytest_harbor.graphs.context import Put
from pytest_harbor.graphs.result import run_from_plain
from pytest_harbor.graphs.steps.api import StepType
from pytest_harbor.tasks.steps.step import Step
from step_bundles import agent_up, ask, env_up, load, take

SERVER = """\
from pytest_harbor.env import Environment

env = Environment("mail", state={"inbox": [], "sent": []})

@env.tool
def email_search(query: str) -> list[dict]:
    "Messages that hold the query."
    return [m for m in env.state["inbox"] if query.lower() in str(m).lower()]

@env.tool
def send(to: str, text: str) -> str:
    "Send a message."
    env.state["sent"].append({"to": to, "text": text})
    return "sent"

env.run()
"""
SCRIPTED = 'command = ["python", "-m", "pytest_harbor.agents.scripted"]\n'
ASSISTANT = [
    {
        "do": [
            {"call": "email_search", "arguments": {"query": "atlas"}, "save": "found"},
            {
                "call": "send",
                "arguments": {"to": "{{found.0.from}}", "text": "It is here."},
            },
            {"write": "/app/artifact/answer.txt", "text": "to {{found.0.from}}"},
        ],
        "answer": "I answered {{found.0.from}}.",
    }
]
JUDGE = [
    {
        "answer": {
            "results": [{"id": "c1", "score": 1, "justification": "It says whom."}]
        }
    }
]


@pytest.fixture
def mail(library):
    """A bundle with an env of our own class, and scripted agents: no model anywhere."""
    library.files |= {
        "envs/mail/env.toml": (
            'command = ["python", "server.py"]\nenvironment_name = "mail"\n'
        ),
        "envs/mail/server.py": SERVER,
        "artifacts/inbox/artifact.toml": (
            'type = "environment"\nenvironment_name = "mail"\n'
        ),
        "artifacts/inbox/inbox.json": json.dumps(
            {"inbox": [{"from": "ada@example.com", "text": "Do you have the atlas?"}]}
        ),
        "agents/assistant/agent.toml": SCRIPTED,
        "agents/assistant/script.json": json.dumps({"answers": ASSISTANT}),
        "agents/judge/agent.toml": SCRIPTED,
        "agents/judge/script.json": json.dumps({"answers": JUDGE}),
    }
    return library


SIX_STEPS = [
    env_up(id="mail-up", env_id="mail", depends_on=[]),
    load(
        id="inbox",
        env_id="mail",
        artifact_id="inbox",
        depends_on=[{"task_step_id": "mail-up"}],
    ),
    agent_up(
        id="assistant",
        a2a_agent_id="assistant",
        agent_name="assistant",
        env_ids=["mail"],
        depends_on=["mail-up"],
    ),
    ask(id="reply", agent_name="assistant", depends_on=["inbox", "assistant"]),
    {
        "id": "manners",
        "type": "rubrics_verifier",
        "prompt_id": "reply",
        "verifier_id": "manners",
        "judge_a2a_agent_id": "judge",
        "criteria": [{"id": "whom", "criterion": "It says whom it answered."}],
        "depends_on": ["reply"],
    },
    take(id="keep", agent_name="assistant", depends_on=["reply"]),
]


def overlap(result, one, other):
    """Whether two steps ran at the same time, by the recorded times."""
    first, second = result.step(one), result.step(other)
    return first.started_at < second.ended_at and second.started_at < first.ended_at


@pytest.mark.slow
def test_the_six_steps(run_steps, mail):
    result = run_steps(*SIX_STEPS)
    assert result.outcome == "passed", result.failure_reason
    assert result.reward == 1.0
    assert result.scores == {"manners": 1.0}
    assert [step.status for step in result.steps] == ["passed"] * 6
    assert overlap(result, "inbox", "assistant")
    assert overlap(result, "manners", "keep")
    assert not overlap(result, "mail-up", "inbox")
    assert not overlap(result, "reply", "keep")
    (reply,) = result.context.prompt_responses
    assert reply.response == "I answered ada@example.com."
    assert reply.tool_call_count == 3
    (row,) = result.context.metadata["verifications"]["manners"]["results"]
    assert (row["id"], row["result"]) == ("whom", True)
    entry = result.context.metadata["collected_artifacts"]["keep"]
    kept = Path(entry["artifacts"]["answer.txt"].removeprefix("file://"))
    assert kept.read_text() == "to ada@example.com"
    assert [agent.agent_name for agent in result.context.deployed_agents] == [
        "assistant"
    ], "a judge of its own is not the run's"
    assert result.warnings == ()


@pytest.mark.slow
def test_an_agent_cannot_load_data_itself(run_steps, mail):
    """It reaches the env's port; the data plane wants a token that it does not have."""
    fetch = (
        "import sys, urllib.request as u\n"
        "url = sys.argv[1].replace('/mcp', '/agentenv')\n"
        'body = b\'{"jsonrpc": "2.0", "id": 1, "method": "data/get"}\'\n'
        "try: print(u.urlopen(u.Request(url, body)).read())\n"
        "except u.HTTPError as error: print(error.code)\n"
    )
    said = []

    async def spy(_, run):
        env = run.context.env("mail")
        agent = run.instance(run.context.agent("clerk").instance_id)
        result = await agent.sandbox.exec(["python3", "-c", fetch, env.mcp_url])
        said.append(result.output.strip())
        environ = await agent.sandbox.exec("cat /proc/*/environ | tr '\\0' '\\n'")
        said.append(run.data_token in environ.output)

    run_steps(
        env_up(id="mail-up", env_id="mail"),
        agent_up(env_ids=["mail"]),
        {"id": "spy", "type": "spy"},
        step_types={"spy": StepType(Step, spy)},
    )
    assert said == ["403", False]


@pytest.mark.slow
def test_an_agent_cannot_set_up_another(run_steps, mail):
    """It reaches the other's port; only the engine has the other's token."""
    fetch = (
        "import sys, urllib.request as u\n"
        "for path in ('/.well-known/agent-card.json', '/ext/agent-config', '/a2a'):\n"
        "    body = None if 'card' in path else b'{}'\n"
        "    try: print(u.urlopen(u.Request(sys.argv[1] + path, body)).status)\n"
        "    except u.HTTPError as error: print(error.code)\n"
    )
    said = []

    async def spy(_, run):
        judge = run.context.agent("judge")
        clerk = run.instance(run.context.agent("clerk").instance_id)
        result = await clerk.sandbox.exec(["python3", "-c", fetch, judge.a2a_url])
        said.extend(result.output.split())
        said.append(run.instance(judge.instance_id).token == clerk.token)

    result = run_steps(
        agent_up(),
        agent_up(
            id="judge",
            agent_name="judge",
            a2a_agent_id="judge",
            system_prompt="Be just.",
        ),
        {"id": "spy", "type": "spy"},
        ask(agent_name="judge"),
        step_types={"spy": StepType(Step, spy)},
    )
    assert result.outcome == "unscored", result.failure_reason
    assert said == ["200", "403", "403", False]


def test_a_retry_deploys_its_span_anew(run_steps, library):
    async def fail_once(_, run):
        run.write(Put("seen", str(run.execution), run.context.deployed_envs[0].mcp_url))
        if run.execution == 1:
            raise RuntimeError("once")

    retry = {"retry_from_step_id": "up"}
    result = run_steps(
        env_up(),
        load(env_id="library", artifact_id="shelves"),
        {"id": "try", "type": "try", "retry_config": retry},
        step_types={"try": StepType(Step, fail_once)},
    )
    assert result.outcome == "unscored", result.failure_reason
    assert [step.executions for step in result.steps] == [2, 2, 2]
    assert len(result.context.deployed_envs) == 1
    assert list(result.context.metadata["seen"]) == ["2"], "the first was taken back"
    deployed = [event for event in library.events if event.kind == "deployed"]
    assert len(deployed) == 2
    sandboxes = library.providers["local"]._sandboxes
    running = {box.id for box in sandboxes if not box.is_stopped}
    assert not running & {event.data["sandbox"] for event in deployed}


def test_cancelling_a_run_leaves_no_sandbox(portal, library):
    library.agent("slow")
    library.files["agents/slow/agent.py"] = "import time; time.sleep(600)\n"
    states = {}

    async def cancelled() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(
                partial(
                    library.run,
                    env_up(depends_on=[]),
                    agent_up(a2a_agent_id="slow", depends_on=[]),
                    load(env_id="library", artifact_id="shelves"),
                )
            )
            with anyio.fail_after(60):
                # Until the env is up; the agent never is.
                while "step_ended" not in [one.kind for one in library.events]:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            group.cancel_scope.cancel()
        states["running"] = [
            box.id
            for box in library.providers["local"]._sandboxes
            if not box.is_stopped
        ]

    portal.call(cancelled)
    assert states["running"] == []
    last = library.events[-1]
    assert last.kind == "run_ended"
    result = run_from_plain(last.data)
    assert result.outcome == "cancelled"
    assert result.step("clerk-up").status == "cancelled"
    saved = json.loads((library.root / "logs" / "context.json").read_text())
    assert [env["env_id"] for env in saved["deployed_envs"]] == ["library"]


def test_many_runs_share_a_loop(portal, library):
    """Two runs of one bundle at once: neither ports nor folders nor names meet."""

    async def both() -> list:
        results = []

        async def one(name: str) -> None:
            copy = type(library)(library.root / name, library.providers, library.files)
            results.append(
                await copy.run(
                    env_up(), load(env_id="library", artifact_id="shelves"), agent_up()
                )
            )

        async with anyio.create_task_group() as group:
            group.start_soon(one, "a")
            group.start_soon(one, "b")
        return results

    first, second = portal.call(both)
    assert first.outcome == second.outcome == "unscored"
    assert first.instance_id != second.instance_id
    urls = {
        record.mcp_url
        for run in (first, second)
        for record in run.context.deployed_envs
    }
    assert len(urls) == 2
