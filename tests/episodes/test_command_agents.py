"""Command-line agents in real sandboxes: what reaches them, what they leave, how they fail.

The command is :mod:`chatty`, which runs its instruction as a script.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
import time
from functools import partial
from pathlib import Path

import docker as docker_sdk
import pytest
from docker.errors import APIError

from chatty import chatty
from episode_runs import run_folder
from pytest_harbor.agents.api import AgentResult
from pytest_harbor.agents.command.agent import CommandAgent
from pytest_harbor.agents.command.mcp import json_writer
from pytest_harbor.errors import AgentError
from pytest_harbor.sandboxes.docker.install import AGENT_LABEL
from pytest_harbor.sandboxes.docker.provider import DockerProvider
from task_folders import write_steps_task, write_task

IN_DOCKER = pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow])
SECRET = "sesame-open-7"
PASS = "echo 1 > /logs/verifier/reward.txt"
CONTINUE = {"turn_sessions": "continue"}
WRITER = json_writer("~/.chatty/servers.json")


@pytest.fixture(scope="module")
def docker(portal):
    provider = DockerProvider()
    yield provider
    portal.call(provider.aclose)
    client = docker_sdk.from_env()
    for image in client.images.list(filters={"label": f"{AGENT_LABEL}=chatty"}):
        with contextlib.suppress(APIError):  # another worker's tests still use it
            client.images.remove(image.id, force=True)
    client.close()


@pytest.fixture
def kind(request):
    return getattr(request, "param", "local")


both = pytest.mark.parametrize("kind", ["local", IN_DOCKER], indirect=True)
"""In a container, too: where that could make a difference."""


@pytest.fixture
def run(request, portal, tmp_path, kind):
    """Run one episode of a task whose instructions are scripts."""
    provider = request.getfixturevalue(kind)
    image = request.getfixturevalue("docker_image") if kind == "docker" else ""

    def run_it(*scripts, top="", toml="", model=None, agent=None, test=PASS, **options):
        settings = {"retries": 0, **options.pop("settings", {})}
        environment = f'docker_image = "{image}"\n' if image else ""
        toml = f"{top}\n[environment]\n{environment}{toml}\n"
        if len(scripts) == 1:
            task = write_task(
                tmp_path / "task", toml, instruction=scripts[0], test=test
            )
        else:
            names = ("one", "two", "three")[: len(scripts)]
            files = {
                f"steps/{name}/instruction.md": script
                for name, script in zip(names, scripts, strict=True)
            }
            steps = options.pop("steps", None)
            tables = "".join(f'[[steps]]\nname = "{name}"\n' for name in names)
            task = write_steps_task(
                tmp_path / "task", toml=toml + (steps or tables), test=test, files=files
            )
        options.setdefault("environ", {})
        call = partial(
            run_folder,
            provider,
            task,
            CommandAgent(agent or chatty(), model=model),
            settings=settings,
            logs=tmp_path / "logs",
            **options,
        )
        return portal.call(call)

    return run_it


def said(result, index=0) -> str:
    """What the command printed in a turn."""
    return result.turns[index].response or ""


def logs_of(result) -> str:
    """Everything that was kept on the host."""
    return "\n".join(
        path.read_text(errors="replace")
        for path in Path(result.logs).rglob("*")
        if path.is_file()
    )


class TestInstruction:
    @both
    def test_it_is_a_file_outside_the_working_directory_and_goes(self, run):
        result = run('echo "$file"; ls -a; id -u', test=f"ls -a /logs/agent; {PASS}")
        assert result.reward == 1
        path, *listed, uid = said(result).splitlines()
        assert re.fullmatch(r"/logs/agent/\.instruction-[0-9a-f]+\.md", path)
        assert (listed, uid) == ([".", ".."], "0")
        assert "instruction" not in result.turns[0].verifier_output_tail

    ODD = "\"'`touch bad`$(touch bad)\\ {instruction} {model} \u00e9 \x00\x07 end\n\n"

    @both
    @pytest.mark.parametrize("how", ["file", "stdin"])
    def test_bytes_arrive_as_they_are(self, run, how):
        command = {
            "file": ("cp", "{instruction}", "/logs/artifacts/told"),
            "stdin": ("sh", "-c", "cat >/logs/artifacts/told"),
        }[how]
        agent = chatty(command=command, instruction=how, continue_command=None)
        instruction = self.ODD + "x" * 1_000_000 + self.ODD
        result = run(instruction, agent=agent, test=f"test ! -e bad && {PASS}")
        told = result.turns[0].artifact("logs/artifacts/told")
        assert told.read_bytes() == instruction.encode()
        assert result.reward == 1

    @both
    def test_another_user_can_read_it(self, run, kind):
        user = "agent" if kind == "docker" else "nobody"
        result = run("id -un; ls /logs/agent | wc -l", toml=f'[agent]\nuser = "{user}"')
        assert said(result).split() == [user, "0"]
        # A home that it cannot write would be no place for its sessions.
        assert result.turns[0].failure_kind is None

    @both
    def test_a_user_without_a_home_gets_one(self, run):
        script = "echo $HOME; touch $HOME/mine; ls $HOME"
        result = run(script, toml="[agent]\nuser = 12345")
        assert said(result).split() == ["/tmp/harbor-home-12345", "mine"]
        assert result.turns[0].failure_kind is None

    @both
    def test_an_agent_that_took_its_log_folder_away_voids_nothing(self, run):
        spoil = "rm -rf /logs/agent; echo x >/logs/agent"
        result = run(spoil, "echo never", test=PASS)
        assert [turn.status for turn in result.turns] == ["graded", "graded"]
        assert result.turns[1].failure_kind == "agent_run_error"
        assert "cannot be placed" in result.turns[1].failure_reason


class TestCommand:
    def test_model_and_logs(self, run):
        result = run('echo "$model"; echo oops >&2', model="prov/large")
        assert said(result) == "prov/large"
        logs = result.turns[0].logs / "agent"
        assert (logs / "chatty.stdout.txt").read_text() == "prov/large\n"
        assert (logs / "chatty.stderr.txt").read_text() == "oops\n"

    def test_environment(self, run):
        agent = chatty(
            env={
                "KEY": "${MY_KEY}",
                "MODEL": "{model}",
                "PLACE": "{prefix} {workdir} {home}",
                "HELD": "${HELD}",
                "SERVERS": "{mcp_config}",
            }
        )
        environ = {"MY_KEY": SECRET, "HELD": "{workdir}", "UNSEEN": "from the host"}
        script = (
            'echo "$KEY|${MODEL-unset}|$PLACE|${HELD%dir\\}}|${SERVERS-unset}|$UNSEEN"'
        )
        result = run(script, agent=agent, environ=environ)
        assert said(result) == (
            "***|unset|/opt/harbor-agents/chatty /app /root|{work|unset|"
        )

    @both
    def test_a_key_is_never_written_down(self, run, tmp_path):
        script = (
            'echo "$KEY"; echo "$KEY" >&2; echo "$KEY" >/logs/agent/own;'
            ' cat /proc/*/cmdline | tr "\\0" " " | grep -c "sesame[-]open"; exit 3'
        )
        agent = chatty(env={"KEY": "${MY_KEY}"})
        result = run(script, agent=agent, environ={"MY_KEY": SECRET})
        assert said(result).splitlines() == ["***", "0"]
        assert "***" in result.turns[0].failure_reason
        assert SECRET not in repr(result)
        assert SECRET not in logs_of(result)
        assert "***" in logs_of(result)

    def test_a_missing_key_refuses_the_episode(self, run):
        result = run("true", agent=chatty(env={"KEY": "${MY_KEY}"}))
        assert (result.status, result.failure_kind) == ("refused", "agent_missing_key")
        assert "'MY_KEY' is not set" in result.failure_reason
        assert result.turns == ()

    def test_other_refusals_are_not_about_keys(self, run):
        agent = chatty(env={"KEY": "${MY_KEY}"}, model_flag=())
        result = run("true", agent=agent, model="m")
        assert result.failure_kind == "harbor:refused"
        assert "cannot be told a model" in result.failure_reason
        assert "MY_KEY" in result.failure_reason


class TestFailures:
    @pytest.mark.parametrize(
        ("script", "failure", "says"),
        [
            ("echo HTTP 429; exit 1", "agent_rate_limited", "exit code 1: HTTP 429"),
            ("echo 401 Unauthorized >&2; exit 1", "agent_auth_error", "401"),
            ("echo lost; exit 7", "agent_run_error", "exit code 7: lost"),
            ("kill -9 $PPID", "agent_run_error", "killed by signal 9"),
        ],
    )
    def test_they_are_told_apart(self, run, script, failure, says):
        policy = ("default = fail", "class:rate_limit = fail")
        result = run(script, settings={"agent_outcome_policy": policy})
        assert (result.status, result.failure_kind) == ("agent_failed", failure)
        assert says in result.failure_reason

    def test_what_was_done_before_is_kept_and_graded(self, run):
        agent = chatty(trajectory=lambda run: AgentResult(text="half", output_tokens=9))
        result = run("exit 7", agent=agent)
        [turn] = result.turns
        assert (result.reward, turn.failure_kind) == (1, "agent_run_error")
        assert (turn.response, turn.output_tokens, turn.agent_exit_code) == (
            "half",
            9,
            7,
        )

    def test_a_classifier_of_its_own_decides(self, run):
        def classify(run):
            return AgentError("no credit", "agent_run_error", 402)

        result = run("true", agent=chatty(failure=classify))
        assert result.status == "graded"
        assert result.turns[0].failure_reason == "chatty: no credit"

    def test_readers_that_break_cost_no_score(self, run):
        def broken(run):
            raise ValueError("what is this?")

        agent = chatty(trajectory=broken, failure=broken, session=broken)
        [turn] = run("true", agent=agent).turns
        assert turn.reward == 1
        assert len([text for text in turn.warnings if "what is this?" in text]) == 3

    @both
    def test_a_command_that_is_not_there(self, run):
        agent = chatty(install=None, probe=(), command=("no-such-cli", "{instruction}"))
        result = run("true", agent=agent)
        assert (result.status, result.failure_kind) == (
            "agent_failed",
            "agent_config_error",
        )
        assert "has no command 'no-such-cli'" in result.failure_reason

    def test_no_network_is_said(self, run):
        result = run(
            "exit 1", agent=chatty(network=True), toml='network_mode = "no-network"'
        )
        assert any("may not reach its model" in text for text in result.warnings)
        assert "the task's network is 'no-network'" in result.turns[0].failure_reason

    LINGER = (
        "echo begun; (setsid sh -c 'sleep 77; sleep 77' &) ; trap '' TERM; sleep 78"
    )
    LEFT = f"! grep -la 'sleep.7[78]' /proc/[0-9]*/cmdline && {PASS}"

    @both
    @pytest.mark.parametrize(
        ("budget", "cap", "says"),
        [("timeout_sec = 1.0", None, "1 s"), ("timeout_sec = 60", 1.0, "1 s")],
    )
    def test_its_time_ends_with_its_whole_tree(self, run, budget, cap, says):
        started = time.monotonic()
        result = run(
            self.LINGER,
            toml=f"[agent]\n{budget}",
            agent=chatty(timeout_sec=cap),
            test=self.LEFT,
        )
        assert time.monotonic() - started < 40
        [turn] = result.turns
        assert (turn.agent_timed_out, turn.response) == (True, "begun")
        assert f"chatty ran out of its {says}" in turn.warnings[0]
        assert "met with" not in turn.warnings[0]
        assert result.reward == 1  # nothing was left, and the work is graded
        assert result.failure_kind is None

    def test_what_it_met_with_before_is_told_and_changes_nothing(self, run):
        def classify(run):
            return AgentError("asked to wait", "agent_rate_limited", 429)

        result = run(
            "sleep 30",
            agent=chatty(failure=classify, timeout_sec=1.0),
        )
        [turn] = result.turns
        assert (result.status, turn.agent_timed_out) == ("graded", True)
        assert "ran out of its 1 s; it had met with: asked to wait" in turn.warnings[0]


class TestSessions:
    STEPS = "cat $talk"

    def test_fresh_turns_know_nothing_of_each_other(self, run):
        result = run("echo 1", "cat $talk", "cat $talk")
        assert [said(result, n).split("\n") for n in range(3)] == [
            ["1"],
            ["cat $talk"],
            ["cat $talk"],
        ]

    @both
    def test_one_conversation_goes_through_all_turns(self, run):
        # Verified in between, in the same sandbox, with the session still open.
        test = f"ps >/dev/null; ls $HOME/.chatty | wc -l; {PASS}"
        result = run("echo 1", "cat $talk", "cat $talk", settings=CONTINUE, test=test)
        assert said(result, 2).split() == ["echo", "1", *["cat", "$talk"] * 2]
        assert [turn.verifier_output_tail.strip() for turn in result.turns] == ["1"] * 3

    def test_nothing_runs_between_the_turns(self, run):
        look = "grep -la c[h]atty /proc/[0-9]*/cmdline; true"
        result = run("true", "true", settings=CONTINUE, test=f"{look}; {PASS}")
        assert [turn.verifier_output_tail for turn in result.turns] == ["", ""]

    def test_the_session_is_the_one_that_the_cli_names(self, run):
        agent = chatty(
            command=("chatty", "--session", "its-own", "{instruction}"),
            session=lambda run: (re.search("session=(.*)", run.output) or [0, None])[1],
        )
        result = run(
            "echo session=its-own", "cat $talk", agent=agent, settings=CONTINUE
        )
        assert said(result, 1).splitlines()[0] == "echo session=its-own"

    @pytest.mark.parametrize("name", ["", "$(touch /app/bad)", "-x", "a b"])
    def test_a_session_without_a_usable_name_is_not_continued(self, run, name):
        agent = chatty(session=lambda run: name)
        result = run("true", "true", agent=agent, settings=CONTINUE)
        assert [turn.failure_kind for turn in result.turns] == [None, "agent_run_error"]
        assert "named no session" in result.turns[1].failure_reason

    def test_an_agent_that_cannot_continue_is_refused(self, run):
        agent = chatty(continue_command=None)
        result = run("true", "true", agent=agent, settings=CONTINUE)
        assert (result.status, result.turns) == ("refused", ())
        assert "cannot continue a session" in result.failure_reason
        assert run("true", agent=agent, settings=CONTINUE).reward == 1

    def test_users_that_switch_are_refused(self, run):
        steps = (
            '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\nagent.user = "nobody"\n'
        )
        result = run("true", "true", settings=CONTINUE, steps=steps)
        assert (result.status, result.turns) == ("refused", ())
        assert "needs one agent user for all steps" in result.failure_reason


def told(run) -> AgentResult:
    """A parser: one step that says what was told, and how much came before."""
    steps = [
        {"step_id": 1, "source": "user", "message": run.instruction},
        {"step_id": 2, "source": "agent", "message": f"after {len(run.earlier)}"},
    ]
    agent = {"name": "chatty", "version": run.version}
    trajectory = {"schema_version": "ATIF-v1.7", "agent": agent, "steps": steps}
    return AgentResult(text=steps[1]["message"], trajectory=trajectory)


class TestTrajectories:
    SHOW = f"cat /logs/agent/trajectory.json; {PASS}"

    def messages(self, path):
        document = json.loads(path.read_text())
        assert document["agent"]["version"] == "chatty 1.0"
        return [step["message"] for step in document["steps"]]

    def test_each_fresh_turn_has_its_own(self, run):
        result = run("true", "false || true", agent=chatty(trajectory=told))
        assert result.trajectory is None
        assert [self.messages(turn.trajectory) for turn in result.turns] == [
            ["true", "after 0"],
            ["false || true", "after 0"],
        ]

    def test_a_continued_session_has_one_and_verifiers_see_their_turns(self, run):
        result = run(
            "true",
            "false || true",
            agent=chatty(trajectory=told),
            settings=CONTINUE,
            test=self.SHOW,
        )
        assert [turn.trajectory for turn in result.turns] == [None, None]
        assert self.messages(result.trajectory) == [
            *("true", "after 0"),
            *("false || true", "after 1"),
        ]
        steps = [
            step["step_id"]
            for step in json.loads(result.trajectory.read_text())["steps"]
        ]
        assert steps == [1, 2, 3, 4]
        shown = [turn.verifier_output_tail for turn in result.turns]
        assert ["after 0" in text for text in shown] == [True, False]
        assert ["after 1" in text for text in shown] == [False, True]

    def test_a_single_session_is_the_episodes(self, run):
        result = run("true", agent=chatty(trajectory=told))
        assert result.trajectory == result.turns[0].trajectory
        assert self.messages(result.trajectory) == ["true", "after 0"]

    @pytest.mark.parametrize("settings", [{}, CONTINUE])
    def test_what_the_turn_before_left_is_not_this_turns(self, run, settings):
        seen = []
        agent = chatty(
            trajectory=lambda run: seen.append(dict(run.files)) or AgentResult(),
            trajectory_files=("{logs}/*.log",),
        )
        write = "echo {0} >/logs/agent/a.log"
        scripts = (write.format(1), "false", write.format(3))
        run(*scripts, agent=agent, settings=settings)
        path = "/logs/agent/a.log"
        assert seen == [{path: "1\n"}, {}, {path: "3\n"}]

    @both
    def test_files_that_the_command_left(self, run):
        seen = {}
        agent = chatty(
            trajectory=lambda run: seen.update(run.files) or AgentResult(),
            trajectory_files=("~/.chatty/{session}", "{logs}/*.log", "/no/such/*"),
        )
        run(
            "echo one >/logs/agent/b.log; ln -s /dev/zero /logs/agent/a.log",
            agent=agent,
        )
        talk, log = seen
        assert re.fullmatch(r"/root/\.chatty/[0-9a-f-]{36}", talk)
        assert seen[talk].startswith("echo one")
        assert (log, seen[log]) == ("/logs/agent/b.log", "one\n")


SERVERS = """
[[environment.mcp_servers]]
name = "local"
transport = "stdio"
command = "serve"
args = ["--fast"]
[[environment.mcp_servers]]
name = "remote"
transport = "streamable-http"
url = "http://sidecar:8000/mcp"
headers = { Authorization = "Bearer ${TOKEN}" }
[[environment.mcp_servers]]
name = "events"
url = "http://sidecar:8001/sse"
"""


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with the path, and how long the key was."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.path} {len(self.headers['X-Api-Key'])}".encode())

    def log_message(self, *_): ...


class TestServersAndSkills:
    @both
    def test_servers_reach_the_command_and_go_with_the_session(self, run):
        agent = chatty(mcp_config=WRITER)
        test = f"ls $HOME/.chatty; {PASS}"
        result = run(
            'cat "$mcp"; ls -l "$mcp"',
            toml=SERVERS,
            agent=agent,
            test=test,
            environ={"TOKEN": SECRET},
        )
        text, end, listed = said(result).rpartition("\n}\n")
        assert json.loads(text + end) == {
            "mcpServers": {
                "local": {"type": "stdio", "command": "serve", "args": ["--fast"]},
                "remote": {
                    "type": "http",
                    "url": "http://sidecar:8000/mcp",
                    "headers": {"Authorization": "Bearer ***"},
                },
                "events": {"type": "sse", "url": "http://sidecar:8001/sse"},
            }
        }
        assert listed.startswith("-rw-------")
        assert "servers.json" not in result.turns[0].verifier_output_tail
        assert SECRET not in logs_of(result)

    CALL = (
        'python3 -c "import json, sys, urllib.request as u;'
        " server = json.load(open(sys.argv[1]))['mcpServers']['m'];"
        " request = u.Request(server['url'], headers=server['headers']);"
        ' print(u.urlopen(request, timeout=20).read().decode())" "$mcp"'
    )

    def test_a_server_on_this_machine_is_reached(self, run):
        """From the local sandbox, whose public network is the machine's own."""
        toml = (
            "[[environment.mcp_servers]]\nname = 'm'\nurl = 'http://127.0.0.1:{}/mcp'\n"
            "headers = {{ X-Api-Key = '${{TOKEN}}' }}\n"
        )
        with http.server.HTTPServer(("127.0.0.1", 0), Echo) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            result = run(
                self.CALL,
                toml=toml.format(server.server_port),
                agent=chatty(mcp_config=WRITER),
                environ={"TOKEN": SECRET},
            )
            server.shutdown()
        assert said(result) == f"/mcp {len(SECRET)}"

    def test_they_stay_while_the_session_does(self, run):
        agent = chatty(mcp_config=WRITER)
        test = f"ls $HOME/.chatty; {PASS}"
        result = run(
            "true",
            'grep -c sidecar "$mcp"',
            toml=SERVERS,
            agent=agent,
            test=test,
            environ={"TOKEN": SECRET},
            settings=CONTINUE,
        )
        assert said(result, 1) == "2"
        there = ["servers.json" in t.verifier_output_tail for t in result.turns]
        assert there == [True, False]  # it closes before the last verifier

    def test_a_header_without_its_variable_is_refused(self, run):
        result = run("true", toml=SERVERS, agent=chatty(mcp_config=WRITER))
        assert result.status == "refused"
        assert "'TOKEN' is not set (needed by" in result.failure_reason
        assert "[[environment.mcp_servers]] 'remote'" in result.failure_reason

    def test_an_agent_that_takes_none_is_warned_of(self, run):
        toml = f'skills_dir = "/skills"\n{SERVERS}'
        result = run('echo "[$mcp]"', toml=toml)
        assert said(result) == "[]"
        told_of = [
            text for text in result.warnings if "chatty" in text or "mine" in text
        ]
        assert told_of == [
            "agent 'mine' takes no MCP servers; it is not told of local, remote, events",
            "agent 'mine' takes no skills; it is not given those in /skills",
        ]

    def test_skills_are_copied_where_it_looks_for_them(self, run):
        agent = chatty(skills="~/.chatty/skills")
        make = "mkdir -p /skills/cook; echo tasty >/skills/cook/SKILL.md"
        toml = (
            f"skills_dir = '/skills'\n[environment.healthcheck]\ncommand = '{make}'\n"
        )
        script = "cat ~/.chatty/skills/cook/SKILL.md"
        assert said(run(script, toml=toml, agent=agent)) == "tasty"

    def test_skills_that_are_not_there_are_warned_of(self, run):
        agent = chatty(skills="~/.chatty/skills")
        result = run("true", toml="skills_dir = '/skills'", agent=agent)
        assert result.reward == 1
        assert "no such folder" in result.turns[0].warnings[0]
