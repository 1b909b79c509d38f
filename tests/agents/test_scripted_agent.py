"""The scripted agent as a real A2A server on a socket, spoken to in both wire versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import anyio
import pytest

from pytest_harbor.agents.scripted.agent import ScriptedAgent
from pytest_harbor.agents.scripted.script import read_script
from pytest_harbor.agents.trajectory import read_trajectory
from pytest_harbor.env import Environment
from pytest_harbor.errors import ServerRefused
from pytest_harbor.protocols import a2a
from pytest_harbor.protocols.agent_server import create_app
from pytest_harbor.protocols.reply import State
from servers import sdk_tools
from servers.running import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def play():
    """Serve a script; gives a function from answers to a base URL."""
    running = []

    def start(*answers):
        agent = ScriptedAgent(read_script(json.dumps(answers), "script"))
        context = serving(create_app(agent))
        running.append(context)
        return context.__enter__()

    yield start
    for context in running:
        context.__exit__(None, None, None)


async def ask(url, text, **options):
    async with await a2a.connect(url) as agent:
        return await agent.send(text, poll_seconds=0.05, **options)


async def test_answers_in_sequence_and_by_what_is_asked(play):
    url = play(
        {"answer": "one"}, {"when": "lunch", "answer": "noon"}, {"answer": "two"}
    )
    texts = [(await ask(url, text)).text for text in ("a", "Lunch?", "b", "lunch?")]
    assert texts == ["one", "noon", "two", "noon"]


async def test_a_prompt_without_an_answer_fails(play):
    reply = await ask(play({"answer": "one", "when": "x"}), "what else?")
    assert reply.state is State.FAILED
    assert reply.error_type == "agent_error"
    assert reply.error_message == "the script has no answer to: what else?"


async def test_it_answers_in_wire_version_0_3_too(play, monkeypatch):
    from pytest_harbor.protocols import agent_card

    url = play({"answer": "old"}, {"answer": "new"})
    async with await a2a.connect(url) as agent:
        assert agent.card.wire == "1.0"
    raw = dict(agent.card.raw)
    del raw["supportedInterfaces"]
    card = agent_card.parse_card(raw, url, agent.card.card_url, same_origin=True)
    assert card.wire == "0.3"
    from pytest_harbor.protocols import a2a_wire

    wire = a2a_wire.WireClient(card.url, "0.3", fallback=card.url)
    async with a2a.AgentConnection(card, url, agent._client, wire) as old:
        reply = await old.send("hello", poll_seconds=0.05)
    assert (reply.state, reply.text) == (State.COMPLETED, "old")


async def test_files_and_commands_are_real_and_their_results_go_into_the_answer(
    play, tmp_path
):
    chart = tmp_path / "artifact" / "chart.svg"
    url = play(
        {
            "do": [
                {"write": str(chart), "text": "<svg>{{prompt}}</svg>"},
                {"write": str(tmp_path / "raw"), "base64": "AAEC"},
                {"run": ["cat", str(chart)], "save": "read"},
            ],
            "answer": "It says {{read}}",
        }
    )
    async with await a2a.connect(url) as agent:
        reply = await agent.send("12 %", poll_seconds=0.05)
        trajectory = read_trajectory(await agent.trajectory(reply.task_id))
    assert reply.text == "It says <svg>12 %</svg>"
    assert reply.tool_call_count == 3
    assert chart.read_text() == "<svg>12 %</svg>"
    assert (tmp_path / "raw").read_bytes() == b"\0\1\2"
    calls = [step.tool_calls[0].function_name for step in trajectory.steps[1:4]]
    assert calls == ["write_file", "write_file", "run"]
    assert [trajectory.steps[0].message, trajectory.steps[-1].message] == [
        "12 %",
        "It says <svg>12 %</svg>",
    ]


async def test_a_failing_command_is_a_result_and_what_cannot_be_done_fails(
    play, tmp_path
):
    url = play(
        {
            "do": [{"run": ["sh", "-c", "echo no; exit 3"], "save": "r"}],
            "answer": "{{r}}",
        },
        {"do": [{"write": "/dev/null/x", "text": ""}]},
        {"do": [{"run": ["/no/such/program"]}]},
        {"answer": "{{never.saved}}"},
    )
    async with await a2a.connect(url) as agent:
        reply = await agent.send("a", poll_seconds=0.05)
        trajectory = read_trajectory(await agent.trajectory(reply.task_id))
        assert (reply.state, reply.text) == (State.COMPLETED, "no")
        result = trajectory.steps[1].observation.results[0]
        assert result.extra == {"is_error": True}
        for message in ("writing /dev/null/x", "running '/no/such", "nothing is saved"):
            reply = await agent.send("b", poll_seconds=0.05)
            assert reply.state is State.FAILED
            assert message in reply.text
            assert await agent.trajectory(reply.task_id)


async def test_an_object_is_text_and_structured_output(play):
    reply = await ask(
        play({"answer": {"message": "Hi {{prompt}}", "done": False}}), "x"
    )
    assert json.loads(reply.text) == {"message": "Hi x", "done": False}
    assert reply.structured_output == {"message": "Hi x", "done": False}


@pytest.mark.parametrize(
    "state", ["failed", "rejected", "canceled", "input-required", "auth-required"]
)
async def test_it_ends_as_it_is_told(play, state):
    error = {"type": "infra_error", "code": "E7", "message": "no disk"}
    reply = await ask(play({"state": state, "answer": "so", "error": error}), "x")
    assert reply.state is State(state)
    assert reply.text == "so"
    if state != "input-required":
        told = (reply.error_type, reply.error_code, reply.error_message)
        assert told == ("infra_error", "E7", "no disk")


async def test_a_message_without_a_task(play):
    reply = await ask(play({"answer": "hi", "message_only": True}), "x")
    assert (reply.state, reply.text, reply.task_id) == (State.COMPLETED, "hi", None)


async def test_further_parts_go_along(play):
    file = {"uri": "https://example.org/a.png", "mimeType": "image/png"}
    reply = await ask(
        play({"answer": "see", "parts": [{"kind": "file", "file": file}]}), "x"
    )
    (sent,) = [part for part in reply.parts if part["kind"] == "file"]
    assert sent["file"]["uri"] == "https://example.org/a.png"


async def test_one_that_hangs_is_cancelled_and_answers_on(play):
    url = play({"when": "wait", "do": [{"hang": True}]}, {"answer": "here"})
    reply = await ask(url, "wait", timeout_seconds=0.3)
    assert reply.state is State.TIMEOUT
    assert (await ask(url, "x")).text == "here"


async def test_what_is_set_on_it(play):
    url = play({"answer": "x"})
    async with await a2a.connect(url) as agent:
        await agent.add_mcp_server("http://127.0.0.1:9/mcp", name="mail")
        assert await agent.mcp_servers() == {
            "mail": {"url": "http://127.0.0.1:9/mcp", "has_headers": False}
        }
        await agent.add_skill("fines", "Late fees", "---\nname: fines\n---\n")
        sent = await agent.configure({"model": "m", "system_prompt": "Be brief."})
        assert sent == {"model", "system_prompt"}
        reply = await agent.send("hi", poll_seconds=0.05)
        trajectory = read_trajectory(await agent.trajectory(reply.task_id))
        with pytest.raises(ServerRefused):
            await agent.trajectory("none")
    assert trajectory.agent.model_name == "m"
    assert [step.source for step in trajectory.steps] == ["system", "user", "agent"]


async def test_bad_extension_calls_are_refused(play):
    import httpx

    url = play({"answer": "x"})
    async with httpx.AsyncClient(base_url=url) as client:
        for path, body, says in (
            ("mcp-config", {"url": "file:///etc"}, "http(s) address"),
            ("mcp-config", {}, "http(s) address"),
            ("skill-config", {"name": "a"}, "must be strings"),
            ("agent-config", {"sudo": True}, "'sudo' cannot be set"),
            ("agent-config", [], "no JSON object"),
        ):
            response = await client.post(f"/ext/{path}", json=body)
            assert response.status_code == 400
            assert says in response.text
        response = await client.post("/ext/agent-config", content=b"{")
        assert (response.status_code, response.text) == (400, "the body is not JSON")


@pytest.fixture(scope="module")
def mail():
    """An environment with tools and a state, as an author writes one."""
    env = Environment("mail", state={"sent": []})

    @env.tool
    def email_search(query: str) -> list[dict]:
        return [{"subject": f"About {query}", "date": "12 May"}]

    @env.tool
    def send(to: str) -> str:
        env.state["sent"].append(to)
        return "sent"

    with serving(env.app()) as url:
        yield env, f"{url}/mcp"


@pytest.fixture(scope="module")
def calculator():
    with serving(sdk_tools.build()) as url:
        yield f"{url}/mcp"


class TestTools:
    """Tool calls are real ones, to the servers that the agent was given."""

    async def ask(self, url, *servers):
        async with await a2a.connect(url) as agent:
            for name, server in servers:
                await agent.add_mcp_server(server, name=name)
            reply = await agent.send("go", poll_seconds=0.05)
            return reply, read_trajectory(await agent.trajectory(reply.task_id))

    async def test_results_go_into_the_answer_and_change_the_state(self, play, mail):
        env, server = mail
        url = play(
            {
                "do": [
                    {
                        "call": "email_search",
                        "arguments": {"query": "offsite"},
                        "save": "found",
                    },
                    {"call": "send", "arguments": {"to": "{{found.0.subject}}"}},
                ],
                "answer": "{{found.0.subject}}: {{found.0.date}}",
            }
        )
        reply, trajectory = await self.ask(url, ("mail", server))
        assert reply.text == "About offsite: 12 May"
        assert reply.tool_call_count == 2
        assert env.state["sent"] == ["About offsite"]
        call = trajectory.steps[1]
        assert call.tool_calls[0].function_name == "email_search"
        assert call.tool_calls[0].arguments == {"query": "offsite"}
        assert "12 May" in call.observation.results[0].content

    async def test_of_several_servers_the_one_that_has_the_tool(
        self, play, mail, calculator
    ):
        add = {"call": "add", "arguments": {"a": 1, "b": 2}, "save": "sum"}
        url = play({"do": [add], "answer": "{{sum}}"})
        reply, _ = await self.ask(url, ("mail", mail[1]), ("calculator", calculator))
        assert reply.text == "3"

    async def test_a_tool_that_fails_is_a_result(self, play, calculator):
        broken = {"call": "broken", "arguments": {"why": "no paper"}, "save": "said"}
        url = play({"do": [broken], "answer": "It said: {{said}}"})
        reply, trajectory = await self.ask(url, ("calculator", calculator))
        assert reply.state is State.COMPLETED
        assert "no paper" in reply.text
        assert trajectory.steps[1].observation.results[0].extra == {"is_error": True}

    @pytest.mark.parametrize(
        ("call", "servers", "says"),
        [
            ({"call": "add"}, 0, "no MCP server of [] has a tool 'add'"),
            ({"call": "add", "server": "bank"}, 1, "no MCP server 'bank', only ['c0']"),
            ({"call": "lend"}, 1, "no MCP server of ['c0'] has a tool 'lend'"),
            ({"call": "lend", "server": "c1"}, 2, "of ['c1'] has a tool 'lend'"),
            ({"call": "lend"}, 2, "no MCP server of ['c0', 'c1'] has a tool 'lend'"),
        ],
    )
    async def test_what_cannot_be_called(self, play, calculator, call, servers, says):
        url = play({"do": [call], "answer": "never"})
        given = [(f"c{number}", calculator) for number in range(servers)]
        reply, _ = await self.ask(url, *given)
        assert reply.state is State.FAILED
        assert says in reply.text

    async def test_a_server_that_is_gone(self, play):
        url = play({"do": [{"call": "add"}]})
        reply, _ = await self.ask(url, ("gone", "http://127.0.0.1:9/mcp"))
        assert reply.state is State.FAILED
        assert "calling 'add' failed" in reply.text


def start(*arguments, **env):
    return subprocess.Popen(
        [sys.executable, "-m", "pytest_harbor.agents.scripted", *arguments],
        env={**os.environ, "A2A_HOST": "127.0.0.1", "A2A_PORT": "0", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


async def test_started_as_a_program(tmp_path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"answer": "hello", "do": [{"exit": 4}]}]))
    process = start(str(script))
    try:
        url = process.stdout.readline().removeprefix("listening on ").strip()
        with anyio.fail_after(20):
            reply = await ask(url, "die", unreachable_seconds=0)
        assert reply.state is State.UNREACHABLE
        assert process.wait(10) == 4
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "env", "says"),
    [
        (["nowhere.json"], {}, "nowhere.json"),
        ([], {"SCRIPTED_AGENT": '[{"anser": 1}]'}, "SCRIPTED_AGENT: answers[0].anser"),
    ],
)
async def test_a_bad_script_is_said_without_a_traceback(arguments, env, says):
    process = start(*arguments, **env)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert output.startswith("scripted agent: ")
    assert says in output
    assert "Traceback" not in output
