"""The same episodes in containers, where another engine answers the same calls."""

from __future__ import annotations

import json

import docker as docker_sdk
import pytest
from step_agents import PerStep

from task_folders import write_steps_task, write_task

pytestmark = pytest.mark.docker


class Shell:
    name = "shell"

    def __init__(self, command):
        self.command = command

    async def run(self, turn):
        result = await turn.sandbox.exec(self.command)
        assert result.ok, result.output


def test_oracle_passes_and_nop_does_not(tmp_path, run_docker, toml):
    task = write_task(
        tmp_path / "task",
        toml,
        test="grep -qx 42 answer.txt && echo 1 > /logs/verifier/reward.txt",
        solve="echo 42 > answer.txt; echo x > /logs/artifacts/kept",
    )
    solved = run_docker(task, "oracle", logs=tmp_path / "solved")
    assert (solved.status, solved.reward) == ("graded", 1.0)
    kept = solved.turns[0].artifact("logs/artifacts/kept")
    assert kept.read_text() == "x\n"
    idle = run_docker(task, "nop", logs=tmp_path / "idle")
    assert (idle.status, idle.reward) == ("graded", 0.0)
    assert idle.failure_kind == "harbor:no_reward_file"


@pytest.mark.parametrize(
    "plant",
    [
        "mkdir -p /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt",
        "mkdir v; echo 1 > v/reward.txt; cd /logs; rm -r verifier; ln -s /app/v verifier",
    ],
)
def test_planted_reward_never_counts(tmp_path, run_docker, toml, plant):
    task = write_task(tmp_path / "task", toml, test="true")
    result = run_docker(task, Shell(plant))
    assert (result.status, result.reward) == ("graded", 0.0)


def test_steps_users_and_separate_verification(tmp_path, run_docker, toml):
    task = write_steps_task(
        tmp_path / "task",
        toml=f'artifacts = ["/app/solver"]\n{toml}'
        '[[steps]]\nname = "a"\n[steps.agent]\nuser = "agent"\n'
        '[[steps]]\nname = "b"\n'
        '[steps.verifier]\nenvironment_mode = "separate"\n',
        test='[ "$(cat solver)" = agent ] && echo 1 > /logs/verifier/reward.txt',
        files={
            "steps/a/instruction.md": "a",
            "steps/b/instruction.md": "b",
            "steps/a/solution/solve.sh": "id -un > solver",
            "steps/b/workdir/setup.sh": '[ "$(id -u)" = 0 ]',
        },
    )
    result = run_docker(task)
    assert [turn.reward for turn in result.turns] == [1.0, 1.0], result
    assert result.verifier_mode == "mixed"


@pytest.fixture
def requests_made(monkeypatch):
    made = []
    send = docker_sdk.APIClient.send

    def counted(self, request, **options):
        made.append(f"{request.method} {request.path_url}")
        return send(self, request, **options)

    monkeypatch.setattr(docker_sdk.APIClient, "send", counted)
    return made


class TestRequests:
    """What one more shared turn asks of the daemon, the agent's own commands apart."""

    def one_more(self, tmp_path, run_docker, requests_made, toml, agent, files=()):
        counts = []
        for steps in ("ab", "abc"):
            folder = tmp_path / steps
            task = write_steps_task(
                folder / "task", *steps, toml=toml, files=dict(files)
            )
            requests_made.clear()
            result = run_docker(task, agent, logs=folder / "logs")
            assert (result.status, result.reward) == ("graded", 1.0)
            ours = [made for made in requests_made if not made.startswith("DELETE")]
            counts.append(len(ours))
        return counts[1] - counts[0]

    def test_of_the_engine(self, tmp_path, run_docker, requests_made, toml):
        run_docker(write_steps_task(tmp_path / "task", "a", toml=toml), "nop")
        more = self.one_more(tmp_path, run_docker, requests_made, toml, "nop")
        # Clean up, collect, bring the tests, run them (2), fetch the logs.
        assert more == 6, "\n".join(requests_made)

    def test_of_the_oracle(self, tmp_path, run_docker, requests_made, toml):
        files = {"solution/solve.sh": "true"}
        run_docker(write_steps_task(tmp_path / "task", "a", toml=toml), "nop")
        more = self.one_more(tmp_path, run_docker, requests_made, toml, "oracle", files)
        assert more == 6 + 2, "\n".join(requests_made)


def test_an_agent_that_runs_out_of_memory_is_graded(tmp_path, run_docker, toml):
    task = write_task(tmp_path / "task", f"{toml}memory_mb = 64\n")
    eat = "x=$(head -c 200000000 /dev/zero | tr '\\0' x)"
    result = run_docker(task, Shell(f'bash -c "{eat}"'))
    assert result.status == "graded"
    assert result.turns[0].warnings[-1] == (
        "out of memory in phase agent: 1 process was killed (memory_mb = 64)"
    )


class TestTurns:
    def test_clean_up_leaves_processes_and_files(self, tmp_path, run_docker, toml):
        task = write_steps_task(
            tmp_path / "task",
            "a",
            "b",
            toml=toml,
            test="touch /tests/made; echo 1 > /logs/verifier/reward.txt",
        )
        agent = PerStep(
            {
                "a": "touch left /logs/agent/notes; mkfifo ask answer; setsid sh -c"
                " 'while read line <ask; do echo \"got $line\" >answer; done'"
                " >/dev/null 2>&1 &",
                "b": "ls left; find /tests /logs/verifier /logs/agent -mindepth 1;"
                " echo hello > ask; timeout 20 cat answer",
            },
            transcript=True,
        )
        result = run_docker(task, agent)
        assert (result.status, result.reward) == ("graded", 1.0)
        assert agent.said("b") == ["left", "/logs/agent/notes", "got hello"]
        transcript = result.turns[1].logs / "agent" / "trajectory.json"
        assert json.loads(transcript.read_text()) == {"step": "b"}

    def test_users_with_groups_switch_and_go_back(self, tmp_path, run_docker, toml):
        task = write_steps_task(
            tmp_path / "task",
            toml=toml + '[[steps]]\nname = "a"\n[steps.agent]\nuser = "agent:staff"\n'
            '[[steps]]\nname = "b"\n',
            files={"steps/a/instruction.md": "", "steps/b/instruction.md": ""},
        )
        who = "id -un; id -gn; stat -c '%U %G' /app"
        agent = PerStep({"a": f"{who}; touch mine", "b": f"{who}; stat -c %U mine"})
        result = run_docker(task, agent)
        assert result.status == "graded"
        assert agent.said("a") == ["agent", "staff", "agent staff"]
        assert agent.said("b")[0] == "root"
        assert agent.said("b")[2].startswith("root ")
        assert agent.said("b")[3] == "agent"

    def test_merge_that_is_blocked(self, tmp_path, run_docker, toml):
        separate = '[steps.verifier]\nenvironment_mode = "separate"\n'
        task = write_steps_task(
            tmp_path / "task",
            toml=f'{toml}[[steps]]\nname = "a"\n{separate}[[steps]]\nname = "b"\n',
            files={
                "steps/a/instruction.md": "",
                "steps/b/instruction.md": "",
                "steps/b/workdir/data": "x",
            },
        )
        result = run_docker(task, PerStep({"a": "mkdir -p data/inner"}))
        assert (result.status, result.reward) == ("graded", 0.5)
        assert result.failure_kind == "harbor:step_workdir_failed"

    def test_a_verifier_of_the_steps_own(
        self, tmp_path, run_docker, toml, docker_image
    ):
        task = write_steps_task(
            tmp_path / "task",
            toml=f'artifacts = ["made"]\n{toml}[[steps]]\nname = "a"\n'
            f'[steps.verifier.environment]\ndocker_image = "{docker_image}"\n'
            'workdir = "/grade"\nenv = { WHERE = "own" }\n'
            '[[steps]]\nname = "b"\n',
            test='[ "$PWD" = /app ] && [ -z "$WHERE" ]'
            " && echo 1 > /logs/verifier/reward.txt",
            files={
                "steps/a/instruction.md": "",
                "steps/b/instruction.md": "",
                "steps/a/tests/test.sh": '[ "$PWD" = /grade ] && [ "$WHERE" = own ]'
                " && [ ! -e /app/other ] && cp /app/made /logs/verifier/reward.txt",
            },
        )
        agent = PerStep({"a": "echo 0.5 > made; touch other", "b": "ls"})
        result = run_docker(task, agent)
        assert [turn.reward for turn in result.turns] == [0.5, 1.0], result
        assert result.verifier_mode == "mixed"
        # The agent's own sandbox went on.
        assert agent.said("b") == ["made", "other"]

    @pytest.mark.parametrize(
        ("break_it", "keys", "status", "kind"),
        [
            (
                "cd /; rm -r /app; touch /app",
                "",
                "no_reward",
                "harbor:no_reward_file",
            ),
            (
                "rm -f /etc/passwd",
                '[steps.agent]\nuser = "agent"\n',
                "error",
                "harbor:sandbox_lost",
            ),
            ("setsid sleep 600 & sleep 600 &", "", "graded", None),
        ],
    )
    def test_a_step_that_breaks_the_sandbox(
        self, tmp_path, run_docker, toml, break_it, keys, status, kind
    ):
        separate = '[steps.verifier]\nenvironment_mode = "separate"\n'
        task = write_steps_task(
            tmp_path / "task",
            toml=f'{toml}[[steps]]\nname = "a"\n{separate}'
            f'[[steps]]\nname = "b"\n{keys}',
            files={"steps/a/instruction.md": "", "steps/b/instruction.md": ""},
        )
        result = run_docker(task, PerStep({"a": break_it}), settings={"retries": 0})
        assert [turn.status for turn in result.turns] == ["graded", status], result
        assert result.failure_kind == kind

    def test_without_a_shell(self, tmp_path, run_docker, toml):
        task = write_steps_task(
            tmp_path / "task",
            toml=toml + '[[steps]]\nname = "a"\n'
            '[steps.verifier]\nenvironment_mode = "separate"\n'
            '[[steps]]\nname = "b"\n[steps.healthcheck]\ncommand = "true"\nretries = 1\n',
            files={"steps/a/instruction.md": "", "steps/b/instruction.md": ""},
        )
        result = run_docker(
            task, PerStep({"a": "rm -f /bin/sh"}), settings={"retries": 0}
        )
        assert (result.status, result.reward) == ("graded", 0.5)
        assert result.failure_kind == "harbor:step_healthcheck_failed"
