"""Command-line agents through pytest: declared in files and hooks, listed, run, refused."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

import pytest

from chatty import INSTALL

if TYPE_CHECKING:
    from scratch_project import Project

TABLE = f"""
[agents.chatty]
description = "runs its instruction"
version = "1.0"
install = '''
{INSTALL}
cat /proc/sys/kernel/random/uuid >"$AGENT_PREFIX/made"
'''
probe = ["chatty", "--version"]
command = ["chatty", "--session", "{{session}}", "{{instruction}}"]
continue_command = ["chatty", "--resume", "{{session}}", "{{instruction}}"]
model_flag = "--model"
network = false
"""
KEYED = """
[agents.keyed]
extends = "chatty"
env = { KEY = "${MY_KEY}" }
"""
SECRET = "sesame-open-7"


@pytest.fixture
def declared(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with the agents ``chatty`` and ``keyed`` in a file of its own."""
    monkeypatch.delenv("MY_KEY", raising=False)
    project.file("agents.toml", TABLE + KEYED)
    project.pytester.makeini(
        "[pytest]\nfilterwarnings = error\nharbor_agents_file = agents.toml\n"
    )
    return project


def responses(project: Project) -> list[str]:
    return [row["response"] for row in project.rows("rollouts.jsonl")]


class TestList:
    def test_what_each_needs(
        self, declared: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SET", "x")
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        declared.file(
            "pyproject.toml",
            "[tool.pytest_harbor.agents.many]\n"
            "command = ['many', '{model}', '{instruction}']\n"
            "required_env = ['SET', ['ONE', 'TWO']]\n"
            "env = { A = '${ONE:-}', B = '${THREE:-x}', C = '${FOUR}' }\n",
        )
        declared.file(
            "conftest.py",
            "from pytest_harbor.agents.command.declaration import AgentDeclaration\n"
            "def pytest_harbor_agents(config):\n"
            "    mine = AgentDeclaration('hooked', ('x', '{instruction}'))\n"
            "    return {'hooked': mine, 'python': dict}\n",
        )
        result = declared.run("--harbor-agents")
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(
            [
                "nop: does nothing",
                "oracle: *",
                "python: offered by a plugin",
                "chat: a model in a loop*",
                "    variables: OPENAI_API_KEY; OPENAI_BASE_URL (not set) for another *",
                "    model: --harbor-model is needed",
                "chatty 1.0: runs its instruction",
                "    variables: none",
                "    install: a script, at most 900 s",
                "    model: --harbor-model",
                "    continues a session: yes, MCP servers: no, skills: no, *",
                "hooked",
                "    install: none, the image must have it",
                "    model: its own choice",
                "keyed 1.0: *",
                "    variables: MY_KEY (not set)",
                "many",
                "    variables: SET, ONE or TWO (not set), THREE (optional), FOUR (not set)",
                "    model: --harbor-model is needed",
            ],
        )
        assert "test session starts" not in str(result.stdout)

    def test_chat_may_be_another(self, declared: Project) -> None:
        """As the catalogue's names may; a file's own agent is not passed over."""
        declared.file("agents.toml", "[agents.chat]\ncommand = ['x', '{instruction}']")
        result = declared.run("--harbor-agents")
        assert result.outlines.count("chat") == 1
        assert not [line for line in result.outlines if line.startswith("chat:")]
        declared.task("t")
        result = declared.run("datasets", "--harbor-agent=chat")
        result.stdout.fnmatch_lines(["*the sandbox has no command 'x'*"])

    def test_broken_ones_are_told_and_hide_no_other(self, declared: Project) -> None:
        declared.file(
            "pyproject.toml", "[tool.pytest_harbor.agents.bad]\ncomand = ['x']\n"
        )
        result = declared.run("--harbor-agents")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stdout.fnmatch_lines(
            ["bad: broken", "    pyproject.toml: unknown key *comand*", "chatty 1.0: *"]
        )

    def test_a_file_that_cannot_be_read_is_a_usage_error(
        self, project: Project
    ) -> None:
        result = project.run("--harbor-agents", "--harbor-agents-file=nowhere.toml")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: *nowhere.toml cannot be read: No such*"])


def test_a_declared_agent_runs(declared: Project) -> None:
    declared.task("t", instruction='echo "$model"', toml="[agent]\ntimeout_sec = 60\n")
    result = declared.run(
        "--harbor-agent=chatty@1.5", "--harbor-model=large", "datasets"
    )
    result.assert_outcomes(passed=1)
    [row] = declared.rows("rollouts.jsonl")
    assert row["node_id"] == "datasets/t/task.toml::t[chatty@1.5]"
    assert (row["agent"], row["model"]) == ("chatty@1.5", "large")
    assert (row["response"], row["warnings"]) == ("large", [])


def test_a_fixture_may_give_a_declaration(declared: Project) -> None:
    declared.file(
        "conftest.py",
        "import pytest\nfrom pytest_harbor import AgentDeclaration\n"
        "@pytest.fixture\ndef harbor_agent():\n"
        "    command = ('sh', '-c', 'echo told; cat', 'x')\n"
        "    return AgentDeclaration('cat', command, instruction='stdin')\n",
    )
    declared.task("t", instruction="this")
    declared.run("datasets").assert_outcomes(passed=1)
    assert responses(declared) == ["told\nthis"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("chaty", "unknown agent 'chaty'. Did you mean 'chatty'? Known ones: *keyed*"),
        (
            "chap",
            "unknown agent 'chap'. Did you mean 'chat'? Known ones: aider, bad, chat,*",
        ),
        ("chat@1", "chat has no version to choose; only declared agents do"),
        ("chatty@", "'' is no version*"),
        ("bad", "agents.toml: *agents.bad*: command is missing"),
    ],
)
def test_names_that_mean_nothing_are_usage_errors(
    declared: Project, name: str, says: str
) -> None:
    with (declared.path / "agents.toml").open("a") as file:
        file.write("\n[agents.bad]\n")
    declared.task("t")
    result = declared.run("datasets", f"--harbor-agent={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{says}"])


def test_a_broken_file_is_nothing_to_the_built_in_agents(declared: Project) -> None:
    declared.file("agents.toml", "x = ")
    declared.task("t", solve="true")
    declared.run("datasets").assert_outcomes(passed=1)
    result = declared.run("datasets", "--harbor-agent=chatty")
    result.stderr.fnmatch_lines(["ERROR: agents.toml: is not valid TOML*"])


def test_a_missing_key_is_an_error_of_its_items_alone(declared: Project) -> None:
    declared.task("t", instruction="true")
    junit = declared.path / "junit.xml"
    result = declared.run(
        "datasets", "--harbor-agent=keyed,chatty", f"--junitxml={junit}"
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "refused: environment variable 'MY_KEY' is not set (needed by env of *'keyed')"
        ]
    )
    assert "agent_missing_key" in junit.read_text()


def test_a_key_is_in_no_report(
    declared: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    script = 'echo "$KEY"; echo "$KEY" >out; exit 3'
    declared.task("t", instruction=script, test="cat out; ls -d /opt/harbor-agents/*")
    junit = declared.path / "junit.xml"
    result = declared.run(
        "datasets", "--harbor-agent=keyed", f"--junitxml={junit}", "-rA", "-vv"
    )
    result.assert_outcomes(failed=1)
    written = [p.read_text() for p in declared.latest.rglob("*") if p.is_file()]
    for text in (str(result.stdout), str(result.stderr), junit.read_text(), *written):
        assert SECRET not in text
    assert sum("***" in text for text in written) >= 3


def test_a_failing_install_is_an_error_with_its_kind(declared: Project) -> None:
    declared.file(
        "pyproject.toml",
        "[tool.pytest_harbor.agents.broken]\ncommand = ['x', '{instruction}']\n"
        "install = 'echo no such package; exit 4'\n",
    )
    declared.task("t")
    junit = declared.path / "junit.xml"
    result = declared.run("datasets", "--harbor-agent=broken", f"--junitxml={junit}")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "agent_install_failed: agent broken: its install script ended with exit code 4*",
            "no such package*",
        ]
    )
    assert 'value="agent_install_failed"' in junit.read_text()
    kinds = [row["failure_kind"] for row in declared.rows("rollouts_failures.jsonl")]
    assert kinds == ["agent_install_failed"] * 2


def test_what_every_agent_of_a_run_is_given(declared: Project) -> None:
    declared.file("skills/cook/SKILL.md", "tasty")
    declared.file(
        "agents.toml",
        "skills = ['skills']\n[[mcp_servers]]\nname = 'm'\nurl = 'http://run'\n"
        + TABLE
        + "mcp_config = { path = '~/.chatty/servers.json' }\n"
        + "mcp_flag = ['--mcp', '{mcp_config}']\nskills = '~/.chatty/skills'\n",
    )
    servers = "[[environment.mcp_servers]]\nname = '{}'\nurl = 'http://task'\n"
    declared.task(
        "t",
        servers.format("m") + servers.format("n"),
        instruction='cat ~/.chatty/skills/cook/SKILL.md; echo; cat "$mcp"',
    )
    declared.run("datasets", "--harbor-agent=chatty").assert_outcomes(passed=1)
    skill, _, written = responses(declared)[0].partition("\n")
    assert skill == "tasty"
    given = json.loads(written)["mcpServers"]
    assert {name: server["url"] for name, server in given.items()} == {
        "m": "http://run",  # the run's entry replaces the task's (spec 3.8)
        "n": "http://task",
    }


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_what_a_passed_episode_warned_of_is_told(
    declared: Project, workers: str
) -> None:
    servers = "[[environment.mcp_servers]]\nname = 'm'\nurl = 'http://task'\n"
    declared.task("t", servers, instruction="echo oh; exit 3")
    result = declared.run_apart("datasets", "--harbor-agent=chatty", f"-n{workers}")
    result.assert_outcomes(passed=1, warnings=2)
    result.stdout.fnmatch_lines_random(
        [
            "*Warning: t?chatty?: agent 'chatty' takes no MCP servers; * told of m",
            "*Warning: t?chatty?: the agent failed (agent_run_error): * code 3: oh; *",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["local", pytest.param("docker", marks=pytest.mark.docker)]
)
def test_workers_install_once(
    declared: Project, request: pytest.FixtureRequest, kind: str
) -> None:
    separate = '[verifier]\nenvironment_mode = "separate"\n'
    # The verifier's own sandbox has no agent.
    test = "test -e /opt/harbor-agents || echo 1 > /logs/verifier/reward.txt"
    image = request.getfixturevalue("docker_image") if kind == "docker" else ""
    environment = f'[environment]\ndocker_image = "{image}"\n' if image else ""
    # A script like no other: nothing is there yet.
    name = f"once-{secrets.token_hex(4)}"
    with (declared.path / "agents.toml").open("a") as file:
        file.write(f"\n[agents.{name}]\nextends = 'chatty'\n")
    for number in range(3):
        declared.task(
            f"t{number}",
            separate + environment,
            instruction=f"cat /opt/harbor-agents/{name}/made",
            test=test,
        )
    try:
        result = declared.run_apart("datasets", f"--harbor-agent={name}", "-n2")
    finally:
        if image:
            remove_images(name)
    result.assert_outcomes(passed=3)
    made = responses(declared)
    assert len(made) == 3
    assert len(set(made)) == 1


def remove_images(agent: str) -> None:
    import docker

    client = docker.from_env()
    label = f"pytest-harbor.agent={agent}"
    for image in client.images.list(filters={"label": label}):
        client.images.remove(image.id, force=True)
    client.close()
