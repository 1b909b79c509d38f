"""The chat agent against a model server on a socket; the sandbox is scripted here.

``tests/examples/test_chat_examples.py`` solves real tasks with it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest

from model_server import (
    INPUT_TOKENS,
    KEY,
    MODEL,
    OUTPUT_TOKENS,
    Call,
    Fault,
    ModelServer,
    Run,
    Say,
    Scene,
    Together,
)
from pytest_harbor.agents import chat
from pytest_harbor.agents.api import AgentTurn, McpServer
from pytest_harbor.agents.chat import NO_RESULT, ChatAgent
from pytest_harbor.agents.chat_failures import failure_of, pause_before_retry
from pytest_harbor.agents.chat_tools import RemoteTools, arguments_of
from pytest_harbor.agents.outcome_policy import parse_policy
from pytest_harbor.agents.trajectory import read_trajectory
from pytest_harbor.errors import SandboxLost, ServerRefused
from pytest_harbor.protocols import chat_completions
from pytest_harbor.protocols.chat_completions import Completion, ToolCall, Usage
from pytest_harbor.sandboxes.api import ExecResult
from scripted_sandbox import ScriptedProvider, ScriptedSandbox
from servers.rubbish_sse import misbehaving_sse
from servers.running import serving
from servers.sdk_tools import build

DEFAULTS = parse_policy([])


class Reachable(ScriptedSandbox):
    async def address(self):
        return "127.0.0.1"


@pytest.fixture
def sandbox():
    def answer(command):
        if command.text == "hang":
            return ExecResult(None, "so far", "", timed_out=True)
        return ExecResult(3, f"ran {command.text} as {command.user}", "")

    return Reachable(ScriptedProvider(answer=answer), "box")


@pytest.fixture
def turn(sandbox, tmp_path):
    def make(instruction="do it", **fields):
        values = {"budget_seconds": 60.0, "user": "alice", "index": 0, **fields}
        (tmp_path / "logs").mkdir(exist_ok=True)
        return AgentTurn(
            instruction, sandbox, step="task", logs=tmp_path / "logs", **values
        )

    return make


@pytest.fixture
def end_budget(monkeypatch):
    """Ends the turn's budget at once, however fast the machine is."""
    scopes = []

    def move_on_after(seconds):
        scopes.append(anyio.CancelScope())
        return scopes[-1]

    stand_in = SimpleNamespace(move_on_after=move_on_after, sleep=anyio.sleep)
    monkeypatch.setattr(chat, "anyio", stand_in)

    def end():
        scopes[-1].cancel()

    return end


@pytest.fixture
def run(turn):
    """Run one turn, or several of one session."""

    def run(server, *turns, **options):
        agent = ChatAgent(
            model=MODEL, api_base=f"{server.url}/v1", pause_seconds=0.01, **options
        )
        needs = agent.needs(
            None, {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEY}
        )
        assert not needs.problems
        assert needs.secrets == (KEY,)

        async def whole():
            return [await agent.run(one) for one in turns or (turn(),)]

        return anyio.run(whole)[-1]

    return run


def test_it_runs_commands_and_tells_the_model(run, sandbox):
    with ModelServer(Scene("do it", Run("ls -l"), Say("All done."))) as server:
        result = run(server)
    assert result.text == "All done."
    assert result.failure is None
    (told,) = [m for m in server.turns[-1].conversation if m.role == "tool"]
    assert told.text == "ran ls -l as alice\n[exit code 3]"
    assert not server.problems


def test_the_trajectory_counts_steps_and_tokens(run, tmp_path):
    with ModelServer(Scene("do it", Run("ls"), Say("Done."))) as server:
        result = run(server)
    trajectory = read_trajectory(result.trajectory)
    assert [step.source for step in trajectory.steps] == [
        "system",
        "user",
        "agent",
        "agent",
    ]
    called = trajectory.steps[2]
    assert called.tool_calls[0].arguments == {"command": "ls"}
    assert "exit code 3" in called.observation.results[0].content
    assert result.input_tokens == trajectory.final_metrics.total_prompt_tokens > 0
    assert result.output_tokens > 0
    assert json.loads((tmp_path / "logs/chat.json").read_text()) == result.trajectory


@pytest.mark.parametrize(
    ("continues", "roles"),
    [
        (True, ["system", "user", "assistant", "user"]),
        (False, ["system", "user"]),
    ],
)
def test_a_session_goes_on_only_where_it_should(run, turn, continues, roles):
    scenes = Scene("first", Say("One.")), Scene("second", Say("Two."))
    # The model server takes a request without a tool call for a turn as well.
    with ModelServer(*scenes) as server:
        result = run(server, turn("first"), turn("second", continues=continues))
    assert result.text == "Two."
    assert [message.role for message in server.turns[-1].conversation] == roles
    # A turn's trajectory is that turn; the engine joins those of a session.
    sources = [step["source"] for step in result.trajectory["steps"]]
    assert sources == ["user", "agent"] if continues else ["system", "user", "agent"]


@pytest.mark.parametrize(
    ("fault", "kind", "status", "action", "requests"),
    [
        ("auth", "agent_auth_error", 401, "fail", 1),
        ("rate_limit", "agent_rate_limited", 429, "retry", 4),
        ("server_error", "agent_request_failed", 500, "retry", 4),
        ("too_long", "agent_token_limit", None, "verify", 1),
        ("cut", "agent_request_failed", None, "retry", 4),
    ],
)
def test_failures_are_told_apart(run, fault, kind, status, action, requests):
    with ModelServer(Scene("do it", Fault(fault), Say("never"))) as server:
        result = run(server)
    assert (result.failure.kind, result.failure.status) == (kind, status)
    assert DEFAULTS.action(kind, status) == action
    assert len(server.requests) == requests
    assert KEY not in str(result.failure)


@pytest.mark.parametrize(
    ("status", "kind", "action"),
    [
        (302, "agent_config_error", "fail"),  # no redirect is followed
        (402, "agent_auth_error", "fail"),
        (404, "agent_config_error", "fail"),
        (408, "agent_request_failed", "retry"),
        (413, "agent_config_error", "fail"),
        (529, "agent_request_failed", "retry"),
    ],
)
def test_other_statuses(status, kind, action):
    failure = failure_of(ServerRefused("no", status=status))
    assert (failure.kind, failure.status) == (kind, status)
    assert DEFAULTS.action(kind, status) == action


def test_a_lack_of_credit_is_no_rate_limit(run, monkeypatch):
    asked = []

    async def complete(*args, **options):
        asked.append(1)
        raise ServerRefused("no credit", status=429, code="insufficient_quota")

    monkeypatch.setattr(chat_completions, "complete", complete)
    with ModelServer() as server:
        failure = run(server).failure
    assert len(asked) == 1
    assert DEFAULTS.action(failure.kind, failure.status) == "fail"


def test_what_passes_is_tried_again_when_the_endpoint_says(run, monkeypatch):
    asked = []

    def pause(error, pause):
        asked.append(error.retry_after_seconds)
        return 0.0

    monkeypatch.setattr(chat, "pause_before_retry", pause)
    faults = [
        Fault("rate_limit", times=1, retry_after=after) for after in ("7", "some day")
    ]
    with ModelServer(Scene("do it", *faults, Say("In the end."))) as server:
        result = run(server)
    assert asked == [7.0, None]
    assert (result.text, result.failure) == ("In the end.", None)
    assert len(server.requests) == 3


def test_a_hanging_model_uses_up_the_budget(run, turn):
    with ModelServer(Scene("do it", Fault("hang"), Say("never"))) as server:
        result = run(server, turn(budget_seconds=0.5))
    assert result.failure.kind == "agent_timeout"
    assert "0.5 s" in str(result.failure)
    assert [step["source"] for step in result.trajectory["steps"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("limit", "kind", "text"),
    [
        ({"max_turns": 2}, "agent_turn_limit", "used up its 2 turns"),
        ({"max_tokens": 1}, "agent_token_limit", "of its 1 tokens"),
    ],
)
def test_limits_end_the_work_as_a_completion(run, limit, kind, text):
    with ModelServer(Scene("do it", *[Run("ls")] * 5, Say("late"))) as server:
        result = run(server, **limit)
    assert result.failure.kind == kind
    assert text in str(result.failure)
    assert DEFAULTS.action(kind) == "verify"


def told_after(run, *arguments):
    """What the model is told after a call of shell with these arguments."""
    calls = [Call("shell", one) for one in arguments]
    with ModelServer(Scene("do it", *calls, Say("ok"))) as server:
        run(server)
    return [m.text for m in server.turns[-1].conversation if m.role == "tool"]


def test_bad_calls_are_told_to_the_model(run):
    told = told_after(
        run,
        {},
        {"command": "a\0b"},
        {"command": "ls", "timeout_seconds": -1},
        {"command": "ls", "timeout_seconds": True},
        {"command": "ls", "timeout_seconds": 10**400},
        {"command": "echo \ud83d"},
        {"command": "hang", "timeout_seconds": 5},
    )
    assert told == [
        "error: shell needs a command, a string",
        "error: a command cannot hold a NUL byte",
        *["error: timeout_seconds must be above 0, at most 86400"] * 3,
        "error: the arguments hold half a character",
        "so far\n[killed after 5 s]",
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{", "are no JSON"),
        ("[" * 100_000, "are no JSON"),
        ('{"a": NaN}', "are no JSON"),
        ("[]", "are no JSON object"),
        (f'{{"a": {"[" * 300}{"]" * 300}}}', "are nested too deeply"),
    ],
)
def test_arguments_that_are_none(arguments, problem):
    with pytest.raises(ValueError, match=problem):
        arguments_of(ToolCall("1", "shell", arguments))


def test_a_budget_that_ends_in_a_call_leaves_a_session_that_can_go_on(
    run, turn, sandbox, end_budget
):
    """Endpoints refuse a tool call without an answer."""

    async def hang(command):
        end_budget()
        await anyio.sleep_forever()

    sandbox.owner.answer = hang
    scenes = (
        Scene("first", Together((Run("one"), Run("two"))), Say("never")),
        Scene("second", Say("Two.")),
    )
    with ModelServer(*scenes) as server:
        result = run(server, turn("first"), turn("second", continues=True))
    assert result.text == "Two."
    asked = server.turns[-1].body["messages"]
    assert [m["role"] for m in asked] == [
        *("system", "user", "assistant", "tool", "tool", "user")
    ]
    called = [call["id"] for call in asked[2]["tool_calls"]]
    assert [m["tool_call_id"] for m in asked[3:5]] == called
    assert {m["content"] for m in asked[3:5]} == {NO_RESULT}


def test_an_empty_answer_is_sent_back_as_text(run, turn):
    """Endpoints take null for an answer with tool calls only."""
    scenes = Scene("first", Say("")), Scene("second", Say("Two."))
    with ModelServer(*scenes) as server:
        run(server, turn("first"), turn("second", continues=True))
    answers = [
        m["content"]
        for m in server.requests[-1].body["messages"]
        if m["role"] == "assistant"
    ]
    assert answers == [""]


def test_a_dead_sandbox_is_an_outage_with_a_log(run, sandbox, tmp_path):
    sandbox.owner.answer = lambda command: SandboxLost("container is gone")
    scene = Scene("do it", Run("ls"), Say("never"))
    with (
        ModelServer(scene) as server,
        pytest.raises(SandboxLost, match="container is gone"),
    ):
        run(server)
    assert len(server.requests) == 1
    kept = json.loads((tmp_path / "logs/chat.json").read_text())
    assert kept["steps"][-1]["tool_calls"][0]["arguments"] == {"command": "ls"}


def test_it_can_be_cancelled_in_a_call(run, turn, sandbox, tmp_path):
    with ModelServer(Scene("do it", Run("ls"), Say("never"))) as server:
        agent = ChatAgent(model=MODEL, api_base=f"{server.url}/v1")
        agent.needs(None, {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEY})

        async def whole():
            with anyio.fail_after(30), anyio.CancelScope() as scope:

                async def cancel(command):
                    scope.cancel()
                    await anyio.sleep_forever()

                sandbox.owner.answer = cancel
                await agent.run(turn())
            return scope.cancelled_caught

        assert anyio.run(whole)
    kept = json.loads((tmp_path / "logs/chat.json").read_text())
    assert [step["source"] for step in kept["steps"]] == ["system", "user", "agent"]


def test_tokens_of_a_session_add_up_over_its_turns(run, turn):
    scenes = Scene("first", Say("One.")), Scene("second", Say("Two."))
    spent = INPUT_TOKENS + OUTPUT_TOKENS
    with ModelServer(*scenes) as server:
        result = run(
            server, turn("first"), turn("second", continues=True), max_tokens=spent
        )
    assert result.failure.kind == "agent_token_limit"
    assert f"used {spent} of its {spent} tokens" in str(result.failure)
    assert len(server.requests) == 1


def test_an_answer_that_was_cut_off_is_a_limit(run, monkeypatch):
    async def complete(*args, **options):
        return Completion("I thi", (), "length", Usage(), MODEL, False, {})

    monkeypatch.setattr(chat_completions, "complete", complete)
    with ModelServer() as server:
        result = run(server)
    assert result.failure.kind == "agent_token_limit"
    assert result.trajectory["steps"][-1]["message"] == "I thi"


def test_no_sdk_is_told_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    needs = ChatAgent(model="m").needs(None, {"OPENAI_API_KEY": "k"})
    [problem] = needs.problems
    assert "pip install 'pytest-harbor[judge]'" in str(problem)


def test_tools_of_mcp_servers(run, turn):
    from pytest_harbor.env import Environment

    env = Environment("desk", state={"notes": []})

    @env.tool
    def note(text: str) -> str:
        """Keep a note."""
        env.state["notes"].append(text)
        return f"kept {text}"

    scene = Scene("do it", Call("note", {"text": "hi"}), Say("ok"))
    with env.serving() as url, ModelServer(scene) as server:
        servers = (
            McpServer(
                "desk",
                "streamable-http",
                url=f"{url}/mcp".replace("127.0.0.1", "localhost"),
            ),
            McpServer("old", "sse", url="http://127.0.0.1:1/sse"),
            McpServer("gone", "streamable-http", url="http://127.0.0.1:1/mcp"),
            McpServer("pipe", "stdio", command="serve"),
        )
        result = run(server, turn(mcp_servers=servers))
    assert env.state == {"notes": ["hi"]}
    (told,) = [m.text for m in server.turns[-1].conversation if m.role == "tool"]
    assert "kept hi" in told
    assert [warning.split(":")[0] for warning in result.warnings] == [
        "MCP server 'old' is left out",
        "MCP server 'gone' is left out",
        "MCP server 'pipe' is left out",
    ]


def test_tools_of_a_server_over_sse(run, turn):
    call = Call("add", {"a": 2, "b": 3})
    with serving(build(over_sse=True)) as url:
        servers = (McpServer("sums", "sse", url=f"{url}/sse"),)
        with ModelServer(Scene("do it", call, Say("ok"))) as server:
            result = run(server, turn(mcp_servers=servers))
    [told] = [m.text for m in server.turns[-1].conversation if m.role == "tool"]
    assert (told, result.warnings) == ("5", ())


def test_a_server_that_dies_fails_its_calls_alone(run, turn):
    """Not the agent, which goes on without it."""
    calls = (Call("fall", {}), Call("fall", {}), Run("ls"))
    with misbehaving_sse() as (url, _):
        servers = (McpServer("rogue", "sse", url=f"{url}/ended-call/sse"),)
        with ModelServer(Scene("do it", *calls, Say("ok"))) as server:
            result = run(server, turn(mcp_servers=servers))
    told = [m.text for m in server.turns[-1].conversation if m.role == "tool"]
    assert told == [
        *[f"error: {url}/ended-call/sse ended the session"] * 2,
        "ran ls as alice\n[exit code 3]",
    ]
    assert (result.text, result.failure) == ("ok", None)


def test_names_of_tools_are_the_endpoints_and_differ(turn):
    tools = RemoteTools(turn())
    names = []
    for name in ("shell", "a.b", "a b", "a b", "x" * 80, "x" * 80, "x" * 80):
        names.append(tools._new_name("my srv", name))
        tools._tools[names[-1]] = (None, name)
    assert names[:4] == ["my_srv_shell", "a_b", "my_srv_a_b", "my_srv_a_b_2"]
    assert len(set(names)) == len(names)
    assert {len(name) for name in names[4:]} <= {62, 64}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://localhost:8000/mcp", "10.0.0.1"),
        ("http://[::1]:8000/mcp", "10.0.0.1"),
        ("http://notes:8000/mcp", "10.0.0.2"),
        ("https://example.com/mcp", None),
    ],
)
def test_servers_are_reached_from_this_machine(sandbox, url, address):
    class At(ScriptedSandbox):
        async def address(self):
            return self.id

    main = At(sandbox.owner, "10.0.0.1")
    main.sidecars["notes"] = At(sandbox.owner, "10.0.0.2")
    turn = AgentTurn("", main, "", 0, None, None, Path())
    assert anyio.run(RemoteTools(turn)._address, url) == address


@pytest.mark.parametrize("end", ["budget", "outage"])
def test_open_sessions_of_servers_hide_no_end(run, turn, sandbox, end_budget, end):
    from pytest_harbor.env import Environment

    async def answer(command):
        if end == "budget":
            end_budget()
            await anyio.sleep_forever()
        return SandboxLost("container is gone")

    sandbox.owner.answer = answer
    scene = Scene("do it", Run("ls"), Say("never"))
    env = Environment("desk", state={})
    with env.serving() as url, ModelServer(scene) as server:
        servers = (McpServer("desk", "streamable-http", url=f"{url}/mcp"),)
        if end == "outage":
            with pytest.raises(SandboxLost, match="container is gone"):
                run(server, turn(mcp_servers=servers))
            return
        result = run(server, turn(mcp_servers=servers))
    assert result.warnings == ()
    assert result.failure.kind == "agent_timeout"
    assert len(result.trajectory["steps"]) == 3


@pytest.mark.parametrize(
    ("asked", "pause"), [(None, 1.0), (0.5, 1.0), (20.0, 20.0), (3600.0, 60.0)]
)
def test_an_endpoint_may_say_when_to_ask_again(asked, pause):
    error = ServerRefused("later", status=429, retry_after_seconds=asked)
    assert pause_before_retry(error, 1.0) == pause


@pytest.mark.parametrize(
    ("model", "environ", "problems", "missing"),
    [
        (None, {"OPENAI_API_KEY": "k"}, ["agent 'chat' needs a model"], []),
        ("m", {}, [], ["agent 'chat' needs OPENAI_API_KEY"]),
        ("m", {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, [], []),
        ("m", {"OPENAI_BASE_URL": "ftp://x"}, ["agent 'chat': "], []),
    ],
)
def test_what_it_lacks_is_told_before_anything_starts(
    model, environ, problems, missing
):
    needs = ChatAgent(model=model).needs(None, environ)
    assert [
        str(p)[: len(e)] for p, e in zip(needs.problems, problems, strict=True)
    ] == problems
    assert [
        str(p)[: len(e)] for p, e in zip(needs.missing_keys, missing, strict=True)
    ] == missing
