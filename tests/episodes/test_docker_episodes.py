"""The same episodes in containers, where another engine answers the same calls."""

from __future__ import annotations

from functools import partial

import pytest

from episode_runs import run_folder
from pytest_harbor.sandboxes.docker.provider import DockerProvider
from task_folders import write_steps_task, write_task

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def docker(portal, docker_problem):
    if docker_problem:
        pytest.skip(docker_problem)
    provider = DockerProvider()
    yield provider
    portal.call(provider.aclose)


@pytest.fixture
def run_docker(portal, docker, tmp_path):
    def run_it(folder, agent="oracle", **options):
        options.setdefault("logs", tmp_path / "logs")
        return portal.call(partial(run_folder, docker, folder, agent, **options))

    return run_it


@pytest.fixture
def toml(docker_image):
    return f'[environment]\ndocker_image = "{docker_image}"\nworkdir = "/app"\n'


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
