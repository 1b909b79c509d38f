"""Episodes of Compose tasks, with a real Redis beside the agent (spec 18)."""

from __future__ import annotations

import json

import docker as docker_sdk
import pytest
from step_agents import PerStep

from task_folders import write_steps_task, write_task

pytestmark = [pytest.mark.docker, pytest.mark.slow]

COMPOSE = """\
services:
  main:
    depends_on: {redis: {condition: service_healthy}}
  redis:
    image: ${MAIN_IMAGE_NAME}
    command: [redis-server, --protected-mode, "no", --dir, /data, --save, ""]
    healthcheck: {test: [CMD, redis-cli, ping], interval: 200ms, retries: 50}
"""
SIDECAR = """\
artifacts = [{ source = "/data", destination = "redis", service = "redis" }]
[[verifier.collect]]
service = "redis"
command = "redis-cli save && redis-cli get word > /data/word"
"""


@pytest.fixture
def toml(compose_program, redis_image):
    return f'[environment]\ndocker_image = "{redis_image}"\nworkdir = "/app"\n'


@pytest.fixture
def left():
    """Containers, networks and volumes of a task that are there."""

    def left(task_id):
        client = docker_sdk.from_env()
        filters = {"label": f"pytest-harbor.task={task_id}"}
        found = [
            *client.containers.list(all=True, filters=filters),
            *client.networks.list(filters=filters),
            *client.volumes.list(filters=filters),
        ]
        client.close()
        return [item.name for item in found]

    return left


def write(folder, toml, compose=COMPOSE, **options):
    files = {"environment/docker-compose.yaml": compose, **options.pop("files", {})}
    return write_task(folder, toml, files=files, **options)


def test_a_sidecar_with_an_artifact(tmp_path, run_docker, toml):
    task = write(
        tmp_path / "task",
        SIDECAR + toml,
        test='[ "$(redis-cli -h redis get word)" = bread ]'
        " && echo 1 > /logs/verifier/reward.txt",
        solve="redis-cli -h redis set word bread",
    )
    result = run_docker(task)
    assert (result.status, result.reward) == ("graded", 1.0), result.failure_reason
    kept = result.turns[0].logs / "verifier" / "artifacts"
    assert (kept / "redis" / "word").read_text() == "bread\n"
    assert (kept / "redis" / "dump.rdb").read_bytes().startswith(b"REDIS")
    rows = json.loads((kept / "manifest.json").read_text())
    assert [(row["service"], row["status"]) for row in rows] == [
        ("main", "empty"),
        ("redis", "ok"),
    ]
    idle = run_docker(task, "nop", logs=tmp_path / "idle")
    assert (idle.status, idle.reward) == ("graded", 0.0)


def test_turns_share_the_sidecar(tmp_path, run_docker, toml):
    task = write_steps_task(
        tmp_path / "task",
        "a",
        "b",
        toml=SIDECAR + toml,
        files={"environment/docker-compose.yaml": COMPOSE},
    )
    agent = PerStep(
        {
            "a": "redis-cli -h redis set word first",
            "b": "redis-cli -h redis append word -second",
        }
    )
    result = run_docker(task, agent)
    words = [
        (turn.logs / "verifier/artifacts/redis/word").read_text().strip()
        for turn in result.turns
    ]
    assert words == ["first", "first-second"]


def test_a_separate_verifier_gets_what_the_sidecar_had(
    tmp_path, run_docker, toml, docker_image
):
    """In the verifier's own sandbox, which has no services; ``main`` is gone by then."""
    artifacts = SIDECAR.replace('destination = "redis", ', "")
    task = write(
        tmp_path / "task-separate",
        f'{artifacts}[verifier.environment]\ndocker_image = "{docker_image}"\n' + toml,
        test='[ "$(cat /data/word)" = bread ] && [ -s /data/dump.rdb ]'
        " && echo 1 > /logs/verifier/reward.txt",
        solve="redis-cli -h redis set word bread",
    )
    result = run_docker(task)
    assert (result.verifier_mode, result.reward) == ("separate", 1.0), (
        result.failure_reason
    )


def test_a_copy_of_the_environment_has_fresh_services(tmp_path, run_docker, toml):
    task = write(
        tmp_path / "task",
        f'[verifier]\nenvironment_mode = "separate"\n{toml}',
        test='[ "$(redis-cli -h redis ping)" = PONG ] && '
        '[ -z "$(redis-cli -h redis get word)" ]'
        " && echo 1 > /logs/verifier/reward.txt",
        solve="redis-cli -h redis set word bread",
    )
    result = run_docker(task)
    assert result.reward == 1.0, result


def test_killing_the_sidecar_voids_no_score(tmp_path, run_docker, toml):
    task = write(tmp_path / "task", SIDECAR + toml)
    agent = PerStep({"task": "redis-cli -h redis shutdown nosave; sleep 1"})
    result = run_docker(task, agent)
    assert (result.status, result.reward) == ("graded", 1.0)
    told = "\n".join(result.turns[0].warnings)
    assert "of service 'redis' was not run: " in told


def test_a_sidecar_that_does_not_start_is_an_outage(tmp_path, run_docker, toml):
    compose = COMPOSE.replace('"no"', '"no", --loadmodule, /nothing')
    task = write(tmp_path / "task-broken", toml, compose)
    result = run_docker(task, settings={"retries": 0})
    assert (result.status, result.failure_kind) == (
        "outage",
        "harbor:sandbox_start_failed",
    )
    assert "service 'redis' ended with exit code 1" in result.failure_reason
    assert "/nothing" in result.failure_reason, result.failure_reason


def test_refused_by_name_before_anything_starts(tmp_path, run_docker, toml, left):
    compose = COMPOSE + "    volumes: ['/var/run/docker.sock:/docker.sock']\n"
    task = write(tmp_path / "task-refused", toml, compose)
    result = run_docker(task)
    assert result.status == "refused"
    assert "service 'redis': volumes: /var/run/docker.sock" in result.failure_reason
    assert result.failed_attempts[0].failure_kind == "harbor:refused"
    assert left("task-refused") == []


def test_the_hosts_variables_by_name_and_masked(tmp_path, run_docker, toml):
    compose = COMPOSE.replace(
        "  main:\n", "  main:\n    environment: {K: '${API_KEY}', O: '${OTHER:-}'}\n"
    )
    task = write(tmp_path / "task", toml, compose, test='echo "$K$O"')
    result = run_docker(task, "nop", environ={"API_KEY": "open-sesame", "X": "y"})
    log = result.turns[0].logs / "verifier" / "test-stdout.txt"
    assert log.read_text() == "***\n"
    assert not any("docker-compose" in text for text in result.warnings)
    unset = run_docker(task, "nop", environ={}, logs=tmp_path / "unset")
    told = "docker-compose.yaml: ${API_KEY} is not set, and empty there"
    assert told in unset.warnings
