"""Agents in pyproject.toml and in a file of their own: read, checked, extended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

from pytest_harbor.agents.api import McpServer
from pytest_harbor.agents.command.config import read_config
from pytest_harbor.agents.command.declaration import AgentDeclaration, CommandRun
from pytest_harbor.agents.registry import declaration_of, resolve_agent
from pytest_harbor.errors import SettingsError

BASE = AgentDeclaration(
    "base",
    ("base", "{instruction}"),
    version="2",
    install="true",
    env={"A": "a", "B": "b"},
    timeout_sec=5.0,
)
MODULE = """\
def write(servers): return []
def parse(run): ...
notes = "text"
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "agent_functions.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    import sys

    sys.modules.pop("agent_functions", None)


def declared(root: Path, agents_file: Path | None = None):
    return read_config(root, agents_file).declared(
        lambda name: declaration_of(name, known={"base": BASE, "python": dict})
    )


def read(root: Path, table: str, name: str = "x") -> AgentDeclaration:
    text = f"[tool.pytest_harbor.agents.{name}]\n{table}"
    (root / "pyproject.toml").write_text(text)
    return declared(root)[name]()


def run(output: str = "", **fields) -> CommandRun:
    return CommandRun("do it", output, "", 0, **fields)


def test_every_key(tmp_path):
    (tmp_path / "setup.sh").write_text("make it\n")
    agent = read(
        tmp_path,
        """
        description = "an agent"
        version = "1.2"
        install_file = "setup.sh"
        install_timeout_sec = 60
        probe = ["x", "--version"]
        command = ["x", "{model_flag}", "run"]
        instruction = "stdin"
        continue_command = ["x", "--resume", "{session}"]
        session = 'session: (\\S+)'
        model_flag = "--model"
        env = { KEY = "${KEY}", MODE = "fast" }
        required_env = ["ONE", ["TWO", "THREE"]]
        provider_env = { acme = ["ACME_KEY"] }
        mcp_config = { path = "~/.x.json", key = "servers" }
        mcp_flag = ["--mcp", "{mcp_config}"]
        skills = "~/.x/skills"
        trajectory = "agent_functions:parse"
        trajectory_files = ["{logs}/x.json"]
        timeout_sec = 90.5
        user = "agent"
        network = false
        failures = [{ pattern = "no credit", kind = "agent_auth_error", status = 402 }]
        """,
    )
    assert agent.install == "make it\n"
    assert (agent.install_timeout_seconds, agent.timeout_sec) == (60, 90.5)
    assert agent.command == ("x", "{model_flag}", "run")
    assert agent.can_continue
    assert agent.model_flag == ("--model", "{model}")
    assert agent.required_env == (("ONE",), ("TWO", "THREE"))
    assert agent.provider_env == {"acme": ("ACME_KEY",)}
    assert (agent.user, agent.network, agent.instruction) == ("agent", False, "stdin")
    assert agent.session(run("a\nsession: abc-1\n")) == "abc-1"
    assert agent.session(run("nothing")) is None
    server = McpServer("m", "stdio", command="serve", args=("a",))
    [file] = agent.mcp_config([server])
    assert file.path == "~/.x.json"
    assert json.loads(file.content) == {
        "servers": {"m": {"type": "stdio", "command": "serve", "args": ["a"]}}
    }
    failed = CommandRun("do it", "no credit", "", 1)
    assert agent.failure(failed).status == 402


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("", "[tool.pytest_harbor.agents.x]: command is missing"),
        (
            'comand = ["x"]',
            (
                "unknown key [tool.pytest_harbor.agents.x].comand (did you mean "
                "[tool.pytest_harbor.agents.x].command?)"
            ),
        ),
        ('command = "x {instruction}"', "].command: must be an array, not the string"),
        ("command = [1]", "must be a string, not the number 1"),
        ('command = ["x"]', "put {instruction} into it"),
        (
            'command = ["x", "{instructions}"]',
            "{instructions} is no placeholder; did you mean {instruction}?",
        ),
        ('command = ["x\\u0000"]', "holds a NUL"),
        ('instruction = "mail"', 'the string \'mail\' is not "file" or "stdin"'),
        ("timeout_sec = 0", "].timeout_sec: must be a positive number, not 0"),
        ("install_timeout_sec = nan", "must be a positive number"),
        ("user = true", "must be a user name or a user ID"),
        ("session = 'id (a)(b)'", "needs one group"),
        ("session = 'id ('", "is no regular expression"),
        ("skills = 'skills'", "'skills' must be absolute or start with ~/"),
        ("mcp_config = { path = 'x' }", "'x' must be absolute or start with ~/"),
        ("mcp_config = { key = 'x' }", "path is missing"),
        ("mcp_config = 'json'", "'json' is no function; write module:function"),
        ("trajectory = 'no_such_module:x'", "No module named 'no_such_module'"),
        ("trajectory = 'agent_functions:x'", "has no 'x'"),
        ("trajectory = 'agent_functions:notes'", "is str, expected a function"),
        ("failures = [{ kind = 'x' }]", "needs pattern or exit_code"),
        ("failures = [{ pattern = '(' }]", "is no regular expression"),
        ("failures = [{ patern = 'x' }]", "did you mean"),
        ("env = { A = 1 }", "must be a string, not the number 1"),
        ("env = { 'A=B' = 'x' }", "no '=', NUL or empty name"),
        ("required_env = 'A'", "must be an array"),
        ("install = 'x'\ninstall_file = 'y'", "exclude each other"),
        ("install_file = 'nowhere.sh'", "nowhere.sh cannot be read"),
        ("probe = ['x']", "there is no install"),
        ("extends = 'bas'", "unknown agent 'bas'. Did you mean 'base'?"),
        ("extends = 'python'", "only a declared agent can be extended"),
    ],
)
def test_what_is_refused_is_named(tmp_path, table, says):
    needs_command = "command" not in table and table and "extends" not in table
    command = 'command = ["x", "{instruction}"]\n' if needs_command else ""
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, command + table)
    assert says in str(caught.value)
    assert "pyproject.toml" in str(caught.value)


def test_a_table_of_servers_is_not_told_to_be_a_function(tmp_path):
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, "command = ['x', '{instruction}']\nmcp_config = { path = 'x' }")
    assert len(str(caught.value).splitlines()) == 1


def test_every_problem_is_told_at_once(tmp_path):
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, "comand = []\nnetwork = 1\nmodel_flag = 2\n")
    assert len(str(caught.value).splitlines()) == 3


def test_a_broken_agent_harms_no_other(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest_harbor.agents]\nbroken = 3\n"
        "[tool.pytest_harbor.agents.x]\ncommand = ['x', '{instruction}']\n"
    )
    agents = declared(tmp_path)
    assert agents["x"]().name == "x"
    with pytest.raises(SettingsError, match=r"agents\.broken\]: must be a table"):
        agents["broken"]()


class TestExtends:
    def test_only_what_is_given_changes(self, tmp_path):
        agent = read(tmp_path, "extends = 'base'\nenv = { B = 'other', C = 'c' }")
        assert agent.command == BASE.command
        assert (agent.name, agent.version, agent.timeout_sec) == ("x", "2", 5.0)
        assert agent.env == {"A": "a", "B": "other", "C": "c"}
        assert agent.prefix == "/opt/harbor-agents/x"

    def test_an_agent_of_its_own_name(self, tmp_path):
        agent = read(tmp_path, "extends = 'base'\nversion = '3'", name="base")
        assert (agent.name, agent.version) == ("base", "3")

    def test_a_chain_of_tables(self, tmp_path):
        agent = read(
            tmp_path,
            "extends = 'y'\ndescription = 'x'\n"
            "[tool.pytest_harbor.agents.y]\nextends = 'base'\nversion = '4'\n",
        )
        assert (agent.description, agent.version) == ("x", "4")

    def test_a_circle_is_named(self, tmp_path):
        with pytest.raises(SettingsError, match="circle: x extends y extends x"):
            read(
                tmp_path,
                "extends = 'y'\n[tool.pytest_harbor.agents.y]\nextends = 'x'\n",
            )


class TestFiles:
    AGENT = "[agents.mine]\ncommand = ['{}', '{{instruction}}']\n"

    def test_a_file_of_its_own_wins(self, tmp_path):
        pyproject = self.AGENT.format("one").replace(
            "agents", "tool.pytest_harbor.agents"
        )
        (tmp_path / "pyproject.toml").write_text(pyproject)
        (tmp_path / "agents.toml").write_text(self.AGENT.format("two"))
        assert declared(tmp_path)["mine"]().command[0] == "one"
        agents = declared(tmp_path, tmp_path / "agents.toml")
        assert agents["mine"]().command[0] == "two"

    def test_none_at_all(self, tmp_path):
        assert declared(tmp_path) == {}

    def test_a_pyproject_without_our_table(self, tmp_path):
        (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
        assert declared(tmp_path) == {}

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("agents = 3", "agents]: must be a table"),
            ("[agent.x]", "unknown key [agent] (did you mean [agents]?)"),
            ("[agents.oracle]", "[agents.oracle]: oracle is built in; rename it"),
            ("skills = ['nowhere']", "skills: there is no folder 'nowhere'"),
            ("x = ", "is not valid TOML"),
            ("[[mcp_servers]]\nname = 'm'", 'transport "sse" needs url'),
        ],
    )
    def test_bad_files(self, tmp_path, text, says):
        (tmp_path / "agents.toml").write_text(text)
        with pytest.raises(SettingsError) as caught:
            read_config(tmp_path, tmp_path / "agents.toml")
        assert says in str(caught.value)
        assert "agents.toml" in str(caught.value)

    def test_a_file_that_is_not_there(self, tmp_path):
        with pytest.raises(SettingsError, match="No such file"):
            read_config(tmp_path, tmp_path / "agents.toml")

    def test_what_every_agent_is_given(self, tmp_path):
        (tmp_path / "skills").mkdir()
        (tmp_path / "agents.toml").write_text(
            "skills = ['skills']\n[[mcp_servers]]\nname = 'm'\nurl = 'http://one'\n"
            "[[mcp_servers]]\nname = 'm'\nurl = 'http://two'\n"
        )
        config = read_config(tmp_path, tmp_path / "agents.toml")
        assert config.skills == (tmp_path / "skills",)
        assert [server.url for server in config.mcp_servers] == ["http://two"]


class TestAtif:
    DOCUMENT: ClassVar = {
        "schema_version": "ATIF-v1.7",
        "agent": {"name": "x", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "do it"},
            {"step_id": 2, "source": "agent", "message": "done"},
        ],
        "final_metrics": {"total_prompt_tokens": 7, "total_cost_usd": 0.5},
    }

    @pytest.fixture
    def parse(self, tmp_path):
        table = "command = ['x', '{instruction}']\ntrajectory = 'atif'"
        return read(tmp_path, table).trajectory

    def test_what_the_command_wrote(self, parse):
        done = parse(run("said", files={"/t.json": json.dumps(self.DOCUMENT)}))
        assert done.trajectory == self.DOCUMENT
        assert (done.text, done.input_tokens, done.cost_usd) == ("done", 7, 0.5)

    @pytest.mark.parametrize(
        ("files", "says"),
        [
            ({}, "the agent wrote no trajectory"),
            ({"/t": "[]"}, "/t is no trajectory"),
            ({"/t": '{"agent": 3}'}, "/t is no trajectory"),
        ],
    )
    def test_what_is_no_trajectory(self, parse, files, says):
        done = parse(run("said\n", files=files))
        assert (done.text, done.trajectory) == ("said", None)
        assert says in done.warnings[0]


class TestVersions:
    def resolve(self, name, **fields):
        agent = AgentDeclaration("cli", ("cli", "{instruction}"), **fields)
        return resolve_agent(name, model=None, known={"cli": agent, "python": dict})

    def test_a_version_is_chosen(self):
        agent = self.resolve("cli@2.1.0-rc1", install="true", version="1.0")
        assert agent.declaration.version == "2.1.0-rc1"
        assert agent.name == "cli@2.1.0-rc1"
        assert agent.declaration.name == "cli"

    @pytest.mark.parametrize(
        ("name", "fields", "says"),
        [
            ("cli@", {"install": "true"}, "'' is no version; write it as cli@1.2.3"),
            ("cli@$(x)", {"install": "true"}, "'$(x)' is no version"),
            ("cli@1", {}, "has no install script"),
            ("python@1", {}, "python has no version to choose"),
            ("oracle@1", {}, "oracle has no version to choose"),
            ("clj@1", {}, "unknown agent 'clj'. Did you mean 'cli'?"),
        ],
    )
    def test_what_is_no_choice(self, name, fields, says):
        with pytest.raises(SettingsError) as caught:
            self.resolve(name, **fields)
        assert says in str(caught.value)
