"""Real command-line agents against a scripted model: installed, driven, continued, failing.

They come from the npm registry, once per run of the suite and place. The model is
:mod:`model_server`, which speaks the wire formats of OpenAI and Anthropic.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from agent_image import agent_image
from episode_runs import run_folder
from model_server import (
    INPUT_TOKENS,
    KEY,
    OUTPUT_TOKENS,
    Call,
    Fault,
    ModelServer,
    Run,
    Say,
    Scene,
    Together,
    Write,
)
from pytest_harbor.agents.registry import resolve_agent
from pytest_harbor.agents.trajectory import read_trajectory
from pytest_harbor.episodes.result import EpisodeResult
from task_folders import write_steps_task, write_task

pytestmark = [pytest.mark.registry, pytest.mark.slow, pytest.mark.timeout(300)]

SECRET_WORD = Call("secret_word", {})
CONTINUE = {"turn_sessions": "continue"}


@dataclass(frozen=True)
class Cli:
    """How the scripted model is named to a CLI."""

    name: str
    model: str
    key: str
    url: str
    path: str
    """Added to the server's address."""
    tells_usage: bool = True
    """Whether its log has the tokens of each answer."""
    secret_word: Call = SECRET_WORD
    """How its model calls that tool of an MCP server."""

    def environ(self, server: ModelServer, key: str) -> dict[str, str]:
        # One retry, where a CLI lets itself be told: its own patience is long.
        # And no search for tools: the script wants to see them.
        quick = {"CLAUDE_CODE_MAX_RETRIES": "1", "ENABLE_TOOL_SEARCH": "false"}
        return {self.key: key, self.url: f"{server.url}{self.path}", **quick}


BRIDGED = {"name": "mcp__words__secret_word", "arguments": {}}
OPENAI = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "/v1")
CLIS = {
    cli.name: cli
    for cli in (
        Cli("claude-code", "m-1", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", ""),
        Cli("codex", "m-1", *OPENAI, tells_usage=False),
        Cli(
            "gemini-cli",
            "m-1",
            "GEMINI_API_KEY",
            "GOOGLE_GEMINI_BASE_URL",
            "",
            tells_usage=False,
        ),
        Cli("opencode", "openai/m-1", *OPENAI),
        Cli("qwen-code", "m-1", *OPENAI, secret_word=Call("tool_call", BRIDGED)),
    )
}
DOCKER = pytest.mark.docker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Those that ``--real-agents`` names; the others are tested by hand."""
    if "cli" in metafunc.fixturenames:
        names = metafunc.config.getoption("--real-agents").split(",")
        metafunc.parametrize("cli", [CLIS[name] for name in names], ids=names)


@pytest.fixture(params=["local", pytest.param("docker", marks=DOCKER)])
def place(request) -> str:
    return request.param


@pytest.fixture(autouse=True)
def _shared_cache(tmp_path_factory, monkeypatch) -> None:
    """All workers of a run share what local sandboxes get installed."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "agents"))


@pytest.fixture
def host(request, place) -> str:
    """The address of this machine, as the sandbox sees it."""
    if place == "local":
        return "127.0.0.1"
    assert request.getfixturevalue("docker_problem") is None
    import docker

    client = docker.from_env()
    try:
        [config] = client.networks.get("bridge").attrs["IPAM"]["Config"]
    finally:
        client.close()
    first = ipaddress.ip_network(config["Subnet"], strict=False)[1]
    return config.get("Gateway") or str(first)


@pytest.fixture
def serve(host):
    """Start the model with a script."""
    servers = []

    def start(*scenes: Scene) -> ModelServer:
        server = ModelServer(*scenes, host=host).__enter__()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.__exit__()
    # What a script does not foresee, and traffic that nobody asked for.
    assert [server.problems for server in servers] == [[]] * len(servers)
    assert [server.unknown_paths for server in servers] == [[]] * len(servers)


@pytest.fixture
def run(request, portal, tmp_path, cli, place):
    """Run one episode of the CLI on a task."""

    def run_it(folder: Path, server: ModelServer, key: str = KEY, **settings):
        provider = request.getfixturevalue(place)
        result: EpisodeResult = portal.call(
            partial(
                run_folder,
                provider,
                folder,
                resolve_agent(cli.name, model=cli.model),
                settings={"retries": 0, **settings},
                environ=cli.environ(server, key),
                logs=tmp_path / "logs",
            )
        )
        kept = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
        assert not [path for path in kept if KEY in path.read_text(errors="replace")]
        return result

    return run_it


@pytest.fixture
def toml(place) -> str:
    image = f'docker_image = "{agent_image()}"\n' if place == "docker" else ""
    return f'[environment]\nworkdir = "/app"\n{image}'


def document(path: Path):
    return read_trajectory(path.read_bytes())


ODD = "Write hello.txt: 'single' \"double\" `id` $(id) ${HOME} \\ é \t{model} end."
HELLO = """\
grep -q "I wrote it" /logs/agent/trajectory.json || exit 1
[ "$(cat /app/hello.txt)" = hello ] && echo 1 >/logs/verifier/reward.txt
"""


def test_a_task_is_solved(cli, serve, run, toml, tmp_path) -> None:
    server = serve(
        Scene(
            "hello.txt",
            Run("echo hello >/app/hello.txt; echo done", say="I will."),
            Say("I wrote it."),
        )
    )
    task = write_task(tmp_path / "task", toml, instruction=ODD, test=HELLO)
    result = run(task, server)
    [turn] = result.turns
    assert (result.reward, turn.failure_kind) == (1, None), result
    assert turn.response == "I wrote it."
    assert ODD in server.turns[0].texts("user")[-1]
    assert server.turns[0].streams
    assert (turn.input_tokens, turn.output_tokens) == (
        2 * INPUT_TOKENS,
        2 * OUTPUT_TOKENS,
    )
    trajectory = document(turn.trajectory)
    assert trajectory.agent.name == cli.name
    assert (
        trajectory.agent.version
        == resolve_agent(cli.name, model=None).declaration.version
    )
    user, acting, saying = trajectory.steps
    assert (user.source, user.message) == ("user", ODD)
    assert (acting.message, saying.message) == ("I will.", "I wrote it.")
    [call] = acting.tool_calls
    assert "hello.txt" in call.arguments["command"]
    assert acting.observation.results[0].content.strip() == "done"
    if cli.tells_usage:
        assert acting.metrics.completion_tokens == OUTPUT_TOKENS


STEPS = {
    "one": Scene(
        "Bake the cake", Write("/app/cake.txt", "baked\n"), Say("Baked as asked.")
    ),
    "two": Scene(
        "Frost the cake",
        Together((Run("echo frosted >>/app/cake.txt"), Run("echo 2 >/app/two.txt"))),
        Say("Frosted as asked."),
    ),
    "three": Scene(
        "Serve the cake", Run("cp /app/cake.txt /app/plate.txt"), Say("Served.")
    ),
}
INSTRUCTIONS = {name: f"{scene.when}, please." for name, scene in STEPS.items()}
CAKE = """\
for file in cake.txt two.txt plate.txt; do [ -e $file ] && echo $file; done
grep -c '"step_id"' /logs/agent/trajectory.json
echo 1 >/logs/verifier/reward.txt
"""


def cake(folder: Path, toml: str) -> Path:
    files = {f"steps/{name}/instruction.md": INSTRUCTIONS[name] for name in STEPS}
    return write_steps_task(folder, *STEPS, toml=toml, test=CAKE, files=files)


def instructions_in(request) -> list[str]:
    """Which of the task's instructions a request carries, in order."""
    texts = "\n".join(request.texts("user"))
    return [name for name, text in INSTRUCTIONS.items() if text in texts]


def test_fresh_sessions_know_nothing_of_each_other(serve, run, toml, tmp_path) -> None:
    server = serve(*STEPS.values())
    result = run(cake(tmp_path / "task", toml), server)
    assert [turn.reward for turn in result.turns] == [1, 1, 1], result
    assert {tuple(instructions_in(request)) for request in server.turns} == {
        ("one",),
        ("two",),
        ("three",),
    }
    assert result.trajectory is None
    sessions = set()
    for turn, text in zip(result.turns, INSTRUCTIONS.values(), strict=True):
        trajectory = document(turn.trajectory)
        assert trajectory.steps[0].message == text
        sessions.add(trajectory.session_id)
    assert len(sessions) == 3
    assert "plate.txt" in result.turns[2].verifier_output_tail


def test_a_continued_session_keeps_the_conversation(serve, run, toml, tmp_path) -> None:
    server = serve(*STEPS.values())
    result = run(cake(tmp_path / "task", toml), server, **CONTINUE)
    assert [turn.reward for turn in result.turns] == [1, 1, 1], result
    last = server.turns[-1]
    assert instructions_in(last) == ["one", "two", "three"]
    assert [text for text in last.texts("assistant") if "as asked" in text] == [
        "Baked as asked.",
        "Frosted as asked.",
    ]
    assert [len(instructions_in(request)) for request in server.turns] == [
        *(1, 1),
        *(2, 2),
        *(3, 3),
    ]
    assert [turn.trajectory for turn in result.turns] == [None] * 3
    whole = document(result.trajectory)
    told = [step.message for step in whole.steps if step.source == "user"]
    assert told == list(INSTRUCTIONS.values())
    assert whole.final_metrics.total_prompt_tokens == 6 * INPUT_TOKENS
    assert sum(len(step.tool_calls or ()) for step in whole.steps) == 4


def test_a_rate_limit_is_tried_again_and_no_score(
    cli, serve, run, toml, tmp_path
) -> None:
    server = serve(Scene("Do it", Fault("rate_limit"), Say("never")))
    result = run(write_task(tmp_path / "task", toml), server, retries=1)
    assert (result.status, result.failure_kind, result.reward) == (
        "agent_failed",
        "agent_rate_limited",
        None,
    ), result
    assert "429" in result.failure_reason or "ate limit" in result.failure_reason
    assert result.failure_reason.startswith(cli.name)
    assert len(result.failed_attempts) == 2


def test_a_refused_key_is_not_tried_again(cli, serve, run, toml, tmp_path) -> None:
    server = serve(Scene("Do it", Say("never")))
    folder = write_task(tmp_path / "task", toml)
    result = run(folder, server, key="sk-wrong-0123456789", retries=1)
    assert (result.status, result.failure_kind, result.reward) == (
        "agent_failed",
        "agent_auth_error",
        None,
    ), result
    assert len(result.failed_attempts) == 1
    assert server.turns == []


LEFT = "! grep -la 'c[l]aude\\|o[p]encode' /proc/[0-9]*/cmdline && echo 1 >/logs/verifier/reward.txt"


def test_a_model_that_hangs_ends_with_the_budget(
    cli, serve, run, toml, tmp_path
) -> None:
    server = serve(Scene("Do it", Fault("hang"), Say("never")))
    toml = f"[agent]\ntimeout_sec = 20\n{toml}"
    result = run(write_task(tmp_path / "task", toml, test=LEFT), server)
    [turn] = result.turns
    assert len(server.turns) >= 1
    assert turn.agent_timed_out
    assert (result.status, result.reward) == ("graded", 1), result
    assert any("ran out of its 20 s" in text for text in turn.warnings)


# An MCP server on standard input and output, in as much shell as busybox has.
WORDS = r"""#!/bin/sh
while read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9][0-9]*\).*/\1/p')
  version=$(printf %s "$line" | sed -n 's/.*"protocolVersion":"\([^"]*\)".*/\1/p')
  case $line in
    *'"initialize"'*) answer='{"protocolVersion":"'$version'","capabilities":{"tools":{}},"serverInfo":{"name":"words","version":"1"}}' ;;
    *'"tools/list"'*) answer='{"tools":[{"name":"secret_word","description":"Tells a word.","inputSchema":{"type":"object","properties":{}}}]}' ;;
    *'"tools/call"'*) echo called >/app/called.txt; answer='{"content":[{"type":"text","text":"the word is sesame"}]}' ;;
    *) answer='{}' ;;
  esac
  [ -z "$id" ] || printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$answer"
done
"""
TOOLS = """
skills_dir = "/app/skills"
[[environment.mcp_servers]]
name = "words"
transport = "stdio"
command = "/bin/sh"
args = ["/app/words.sh"]
"""


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_mcp_servers_and_skills_reach_it(cli, serve, run, toml, tmp_path) -> None:
    server = serve(Scene("Do it", cli.secret_word, Say("I asked.")))
    skill = "---\nname: baking-bread\ndescription: How to bake.\n---\nKnead it.\n"
    files = {
        "environment/words.sh": WORDS,
        "environment/skills/baking-bread/SKILL.md": skill,
    }
    test = "[ -e /app/called.txt ] && echo 1 >/logs/verifier/reward.txt"
    task = write_task(tmp_path / "task", toml + TOOLS, files=files, test=test)
    result = run(task, server)
    assert result.reward == 1, result
    assert "the word is sesame" in server.turns[-1].texts("tool")[-1]
    assert "baking-bread" in json.dumps(server.turns[0].body)
    call = document(result.turns[0].trajectory).steps[1].tool_calls[0]
    assert "secret_word" in f"{call.function_name} {call.arguments}"
