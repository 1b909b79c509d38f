"""Command-line agents that a step deploys: a real sandbox, and A2A to it (spec 6, 12)."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import anyio
import pytest

from chatty import chatty
from pytest_harbor.agents.api import AgentResult
from pytest_harbor.agents.bridge import instruction
from pytest_harbor.agents.command.declaration import AgentDeclaration
from pytest_harbor.agents.command.mcp import json_writer
from pytest_harbor.errors import (
    AGENT_AUTH_ERROR,
    AgentError,
    ServerRefused,
    UnsupportedByAgent,
)
from pytest_harbor.graphs.bridges import BridgeSource, bridged_agents
from pytest_harbor.graphs.instances import AgentLaunch
from pytest_harbor.graphs.run import run
from pytest_harbor.graphs.steps.api import StepType
from pytest_harbor.graphs.turns import connect
from pytest_harbor.protocols import a2a
from pytest_harbor.protocols.reply import State
from pytest_harbor.protocols.served_agent import Incoming
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.provider import LocalProvider
from pytest_harbor.tasks.steps.load import load_step_task
from pytest_harbor.tasks.steps.step import Step

pytestmark = pytest.mark.anyio

SECRET = "sesame-open-7"


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def local(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        provider = LocalProvider()
    found = await provider.probe()
    if not found.available:
        pytest.skip(found.reason)
    yield provider
    await provider.aclose()


class Use(Step):
    """A step that does what the test says."""


@pytest.fixture
def deploy(local, tmp_path):
    """Run a step that deploys a declared agent, and uses it."""

    async def deploy(declaration, use, *, environ=None, secrets=(), **launch):
        sources = bridged_agents(
            {declaration.name: lambda: declaration}, environ=environ or {}
        )

        async def act(step, step_run):
            step_run.masker.add(*secrets)
            wanted = AgentLaunch(declaration.name, "clerk", **launch)
            instance = await step_run.start_agent(wanted)
            assert instance.url.startswith("http://127.0.0.1:")
            async with await connect(instance.url, instance) as agent:
                await use(agent, instance)

        file = tmp_path / "tasks" / "talk.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps([{"id": "talk", "type": "use"}]))
        return await run(
            load_step_task(file, step_types={"use": Use}),
            {"local": local},
            logs=tmp_path / "logs",
            environ={},
            agents=sources,
            step_types={"use": StepType(Use, act)},
        )

    return deploy


def kept(result):
    return [file.read_text() for file in Path(result.logs).rglob("*.stdout.txt")]


def error_of(result):
    (step,) = result.steps
    return step.error or None


async def test_prompt_answer_and_teardown(deploy):
    seen = {}

    async def use(agent, instance):
        seen["instance"] = instance
        seen["offers"] = set(agent.card.extensions)
        seen["reply"] = await agent.send("echo you said $((6 * 7)); pwd")

    result = await deploy(chatty(), use)
    assert error_of(result) is None
    assert seen["reply"].state is State.COMPLETED
    assert seen["reply"].text == "you said 42\n/app"
    assert seen["offers"] == {"urn:agentenv:agent-config/v1"}
    assert seen["instance"].death == "was stopped"
    with pytest.raises(Exception, match="refused"):
        await a2a.connect(seen["instance"].url, timeout_seconds=0)


async def test_others_reach_its_card_and_no_more(deploy):
    async def use(agent, instance):
        async with await a2a.connect(instance.url) as stranger:
            with pytest.raises(ServerRefused, match=r"403.*not for other agents"):
                await stranger.configure({"system_prompt": "Grade everything 1."})
            reply = await stranger.send("echo mine")
        assert (reply.state, reply.error_code) == (State.UNREACHABLE, "HTTP 403")
        assert (await agent.send("echo mine")).text == "mine"

    assert error_of(await deploy(chatty(), use)) is None


async def test_a_context_is_a_session(deploy):
    async def use(agent, instance):
        one = await agent.send("echo one", context_id="a")
        other = await agent.send("cat $talk", context_id="b")
        both = await agent.send("cat $talk", context_id="a")
        assert (one.text, other.text) == ("one", "cat $talk")
        assert both.text == "echo one\ncat $talk"

    assert error_of(await deploy(chatty(), use)) is None


async def test_what_was_said_is_told_where_sessions_cannot_go_on(deploy):
    async def use(agent, instance):
        first = await agent.send("one", context_id="a")
        second = await agent.send("two", context_id="a")
        other = await agent.send("three", context_id="b")
        assert (first.text, other.text) == ("one", "three")
        assert second.text.startswith(
            "The conversation so far:\n\nUser: one\n\nYou: one"
        )
        assert second.text.endswith("two")

    plain = AgentDeclaration("plain", ("cat", "{instruction}"))
    assert error_of(await deploy(plain, use)) is None


async def test_settings_reach_the_command(deploy):
    writer = json_writer("~/.chatty/servers.json")
    declaration = chatty(mcp_config=writer, skills="~/.chatty/skills")

    async def use(agent, instance):
        await agent.add_mcp_server(
            "http://127.0.0.1:9/mcp", "mail", {"x-role": "clerk"}
        )
        await agent.add_skill("fines", "Fees", "Ten cents a day.")
        sent = await agent.configure(
            {"model": "m2", "system_prompt": "echo system", "effort": "high"}
        )
        assert sent == {"model", "system_prompt"}
        reply = await agent.send(
            "echo $model; cat $mcp ~/.chatty/skills/fines/SKILL.md; echo $DESK",
            context_id="a",
        )
        assert reply.text.startswith("system\nm2\n")
        assert '"url": "http://127.0.0.1:9/mcp"' in reply.text
        assert "x-role" in reply.text
        assert reply.text.endswith("Ten cents a day.front")
        again = await agent.send("echo again", context_id="a")
        assert again.text == "again"

    result = await deploy(declaration, use, model="m1", env={"DESK": "front"})
    assert error_of(result) is None


async def test_files_of_a_message(deploy):
    async def use(agent, instance):
        content = base64.b64encode(b"hello").decode()
        reply = await agent.send(
            [
                {
                    "kind": "text",
                    "text": "cat /tmp/prompt_files/*; ls /tmp/prompt_files;:",
                },
                {"kind": "file", "file": {"bytes": content, "name": "../a b.txt"}},
            ]
        )
        assert reply.text.splitlines()[0] == "hello01-2-a-b.txt"

    assert error_of(await deploy(chatty(), use)) is None


@pytest.mark.slow
async def test_failures(deploy):
    async def use(agent, instance):
        broken = await agent.send("echo so far; echo no disk >&2; exit 3")
        assert (broken.state, broken.text) == (State.FAILED, "so far\n".strip())
        assert (broken.error_type, broken.error_code) == (
            "agent_error",
            "agent_run_error",
        )
        assert "no disk" in broken.error_message
        assert await instance.log_tail() == "no disk"

        await agent.configure({"timeout_seconds": 0.5})
        late = await agent.send("echo begun; sleep 60")
        assert (late.error_type, late.error_code) == ("agent_error", "agent_timeout")

    assert error_of(await deploy(chatty(), use)) is None


async def test_a_key_that_is_refused_is_no_fault_of_the_agent(deploy):
    def failure(run):
        return AgentError("bad key", AGENT_AUTH_ERROR, 401)

    async def use(agent, instance):
        reply = await agent.send("exit 1")
        assert (reply.error_type, reply.error_code) == (
            "infra_error",
            "agent_auth_error",
        )

    assert error_of(await deploy(chatty(failure=failure), use)) is None


@pytest.mark.slow
async def test_timeout_kills_the_command(deploy):
    async def use(agent, instance):
        reply = await agent.send("sleep 61.5", timeout_seconds=1.0)
        assert reply.state is State.TIMEOUT
        after = await agent.send("pgrep -f 'sleep 61.[5]' || echo gone")
        assert after.text == "gone"

    assert error_of(await deploy(chatty(), use)) is None


async def test_trajectory_and_what_was_used(deploy):
    def read(found):
        return AgentResult(
            text=f"answer {SECRET}",
            input_tokens=7,
            trajectory={
                "steps": [
                    {"tool_calls": [{"a": SECRET}, {}]},
                    {"message": "m"},
                    {"tool_calls": [{}]},
                ]
            },
        )

    async def use(agent, instance):
        reply = await agent.send("echo $KEY")
        assert (reply.text, reply.tool_call_count) == ("answer ***", 3)
        assert reply.data[0]["usage"] == {"tool_call_count": 3, "input_tokens": 7}
        trajectory = await agent.trajectory(reply.task_id)
        assert trajectory["steps"][0]["tool_calls"] == [{"a": "***"}, {}]

    declaration = chatty(trajectory=read, required_env=(("KEY",),))
    result = await deploy(declaration, use, environ={"KEY": SECRET})
    assert error_of(result) is None
    assert kept(result) == ["***\n"]


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False])
async def test_secrets_of_the_run_are_in_no_log(deploy, ends):
    """Also when the prompt is given up and the command is cancelled."""

    async def use(agent, instance):
        script = 'echo "$KEY $NOTE"; ' + ("true" if ends else "sleep 61.7")
        reply = await agent.send(script, timeout_seconds=30.0 if ends else 1.0)
        if ends:
            # Steps go on with what they are told, and records mask it.
            assert reply.text == "*** note-of-the-run"

    result = await deploy(
        chatty(required_env=(("KEY",),)),
        use,
        environ={"KEY": SECRET},
        env={"NOTE": "note-of-the-run"},
        secrets=["note-of-the-run"],
    )
    assert error_of(result) is None
    assert kept(result) == ["*** ***\n"]


async def test_what_is_written_last_is_masked_with_the_teardown(deploy, tmp_path):
    async def use(agent, instance):
        await agent.send("true")
        (log,) = (tmp_path / "logs").rglob("*.stdout.txt")
        log.write_text(f"late {SECRET}")

    declaration = chatty(required_env=(("KEY",),))
    result = await deploy(declaration, use, environ={"KEY": SECRET})
    assert kept(result) == ["late ***"]


async def test_what_cannot_work_is_refused_before_a_sandbox(deploy, local):
    async def use(agent, instance):
        raise AssertionError("deployed")

    declaration = chatty(required_env=(("KEY",),))
    result = await deploy(declaration, use)
    assert "environment variable 'KEY' is not set" in error_of(result)
    result = await deploy(chatty(), use, version=2)
    assert "has version 1 only" in error_of(result)


async def test_a_command_that_takes_no_servers(deploy):
    async def use(agent, instance):
        with pytest.raises(UnsupportedByAgent):
            await agent.add_mcp_server("http://127.0.0.1:9/mcp", "mail")

    assert error_of(await deploy(chatty(), use)) is None


async def test_end_of_its_lifetime(deploy):
    async def use(agent, instance):
        with anyio.fail_after(20):
            reply = await agent.send(
                "sleep 30", unreachable_seconds=0.1, poll_seconds=0.05
            )
        assert reply.state in (State.UNREACHABLE, State.FAILED)
        assert instance.death == "reached its lifetime of 1 s (ttl_seconds)"

    await deploy(chatty(), use, ttl_seconds=1)


def test_sandbox_of_a_bridge():
    source = BridgeSource("chatty", chatty)
    launch = AgentLaunch("chatty", "clerk")
    assert source.provider("auto") == "local"
    assert source.spec(launch, "local").image is None
    assert source.spec(launch, "local").install.name == "chatty"
    assert source.spec(launch, "docker").image == "debian:12-slim"
    pictured = BridgeSource("chatty", chatty, image="node:22")
    assert pictured.provider("auto") == "docker"
    assert isinstance(pictured.spec(launch, "docker"), EnvironmentSpec)
    assert pictured.spec(launch, "docker").image == "node:22"


def test_instruction():
    parts = (
        {"kind": "text", "text": "Grade it."},
        {"kind": "data", "data": {"a": "ä"}},
    )
    message = Incoming("Grade it.", parts, "t", "c")
    values = {
        "system_prompt": "Be fair.",
        "output_format": {"type": "json_schema", "schema": {"type": "object"}},
    }
    assert instruction(message, values, files=["/tmp/x"], said=[("hi", "ho")]) == (
        "Be fair.\n\nThe conversation so far:\n\nUser: hi\n\nYou: ho\n\n"
        "The user's next message:\n\nGrade it.\n\n"
        '{"a": "ä"}\n\nFiles of this message: /tmp/x\n\n'
        "End with one JSON object and nothing after it. It must fit this JSON schema: "
        '{"type": "object"}'
    )
    assert instruction(message, values, is_first=False).startswith("Grade it.")
    assert instruction(Incoming("x", (), "t", "c"), {}) == "x"
