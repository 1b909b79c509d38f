"""Where a separate verifier's sandbox comes from, in real containers (spec 8.3)."""

from __future__ import annotations

import json

import pytest
from step_agents import PerStep

from task_folders import write_steps_task, write_task

pytestmark = [pytest.mark.docker, pytest.mark.slow]

WHICH = "cat /which > /logs/verifier/which; cp /app/made /logs/verifier/reward.txt"


@pytest.fixture
def dockerfile(docker_image):
    """A Dockerfile whose image tells itself from others, and has more if asked."""

    def make(which, *lines):
        return "\n".join(
            [f"FROM {docker_image}", f"RUN echo {which} > /which", *lines, ""]
        )

    return make


@pytest.fixture
def agent():
    rewards = {"task": 0.5, "s1": 0.1, "s2": 0.2}
    return PerStep({name: f"echo {value} > made" for name, value in rewards.items()})


def which(turn):
    return (turn.logs / "verifier" / "which").read_text().strip()


SOURCES = {
    "a copy of the environment": (
        'environment_mode = "separate"\n',
        {},
        "env",
        "folder",
    ),
    "tests/Dockerfile": (
        'environment_mode = "separate"\n',
        {"tests/Dockerfile": ("tests", ())},
        "tests",
        "folder",
    ),
    "tests/Dockerfile that brings them": (
        'environment_mode = "separate"\n',
        {"tests/Dockerfile": ("tests", ("COPY test.sh /tests/test.sh",))},
        "tests",
        "image",
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_of_one_step(tmp_path, run_docker, dockerfile, agent, source):
    keys, files, expected, tests_from = SOURCES[source]
    task = write_task(
        tmp_path / "task",
        f'artifacts = ["made"]\n[verifier]\n{keys}[environment]\nworkdir = "/app"\n',
        test=WHICH,
        files={
            "environment/Dockerfile": dockerfile("env"),
            **{name: dockerfile(who, *lines) for name, (who, lines) in files.items()},
        },
    )
    result = run_docker(task, agent)
    assert (result.status, result.reward) == ("graded", 0.5), result.failure_reason
    [turn] = result.turns
    assert (which(turn), turn.tests_from) == (expected, tests_from)
    assert result.verifier_mode == "separate"


def test_an_image_of_the_verifiers_own(tmp_path, run_docker, dockerfile, agent):
    """Built here with tests of its own, then named: nothing is uploaded over them."""
    import docker

    tag = "pytest-harbor-test/grader:1"
    context = tmp_path / "grader"
    context.mkdir()
    (context / "test.sh").write_text(f"{WHICH}; echo own > /logs/verifier/note\n")
    (context / "Dockerfile").write_text(
        dockerfile("image", "COPY test.sh /tests/test.sh")
    )
    client = docker.from_env()
    client.images.build(path=str(context), tag=tag, rm=True)
    client.close()
    task = write_task(
        tmp_path / "task",
        f'artifacts = ["made"]\n[verifier.environment]\ndocker_image = "{tag}"\n'
        '[environment]\nworkdir = "/app"\n',
        test="exit 1",
        files={"environment/Dockerfile": dockerfile("env")},
    )
    result = run_docker(task, agent)
    [turn] = result.turns
    assert (turn.reward, which(turn), turn.tests_from) == (0.5, "image", "image")
    assert (turn.logs / "verifier" / "note").read_text() == "own\n"


def test_of_steps(tmp_path, run_docker, dockerfile, docker_image, agent):
    """The step's table, else the task's, each turn in a fresh sandbox."""
    task = write_steps_task(
        tmp_path / "task",
        toml='artifacts = ["made"]\n[environment]\nworkdir = "/app"\n'
        "[verifier.environment]\n"
        '[[steps]]\nname = "s1"\n'
        '[[steps]]\nname = "s2"\n[steps.verifier.environment]\n'
        f'docker_image = "{docker_image}"\n',
        test="[ ! -e /app/kept ] && touch /app/kept && "
        "cat /which > /logs/verifier/which; cp /app/made /logs/verifier/reward.txt",
        files={
            "environment/Dockerfile": dockerfile("env"),
            "tests/Dockerfile": dockerfile("tests"),
            "steps/s1/instruction.md": "",
            "steps/s2/instruction.md": "",
        },
    )
    result = run_docker(task, agent)
    assert [turn.reward for turn in result.turns] == [0.1, 0.2], result.failure_reason
    assert which(result.turns[0]) == "tests"
    assert which(result.turns[1]) == ""  # the plain image has no such file
    assert result.verifier_mode == "separate"


def test_an_image_that_is_missing_is_found_before_the_agent_works(
    tmp_path, run_docker, toml
):
    task = write_task(
        tmp_path / "task",
        f'[verifier.environment]\ndocker_image = "127.0.0.1:9/no-grader:1"\n{toml}',
    )
    result = run_docker(task, PerStep({}))
    assert (result.status, result.failed_phase) == ("outage", "seed")
    assert "127.0.0.1:9/no-grader:1" in result.failure_reason
    assert result.turns == ()


def test_a_dockerfile_that_fails_is_found_before_the_agent_works(
    tmp_path, run_docker, dockerfile, toml
):
    task = write_task(
        tmp_path / "task",
        f'[verifier]\nenvironment_mode = "separate"\n{toml}',
        files={"tests/Dockerfile": dockerfile("tests", "RUN exit 7")},
    )
    result = run_docker(task, PerStep({}))
    assert (result.status, result.failed_phase) == ("terminal", "seed")
    assert "tests" in result.failure_reason
    assert "7" in result.failure_reason
    assert result.turns == ()


def test_artifacts_lie_at_their_sources(tmp_path, run_docker, toml):
    """Folders replace what is there, files only themselves; nothing else comes along."""
    script = (
        "cd /; find /srv /data /logs/artifacts -type f | sort > /logs/verifier/list;"
        " echo 1 > /logs/verifier/reward.txt"
    )
    task = write_task(
        tmp_path / "task",
        'artifacts = ["/srv/out", { source = "/data/x", destination = "renamed" }]\n'
        f'[verifier]\nenvironment_mode = "separate"\n{toml}',
        test=script,
    )
    agent = PerStep(
        {
            "task": "mkdir -p /srv/out/deep /data; echo a > /srv/out/deep/a;"
            " echo x > /data/x; echo y > /data/y; echo k > /logs/artifacts/kept"
        }
    )
    result = run_docker(task, agent)
    listed = (result.turns[0].logs / "verifier" / "list").read_text().split()
    assert listed == ["/data/x", "/logs/artifacts/kept", "/srv/out/deep/a"]


def test_the_record_says_where_the_tests_came_from(tmp_path, run_docker, toml):
    from pytest_harbor.episodes.plain_data import result_to_plain

    result = run_docker(write_task(tmp_path / "task", toml), "nop")
    plain = json.loads(json.dumps(result_to_plain(result)))
    assert plain["turns"][0]["tests_from"] == "folder"
