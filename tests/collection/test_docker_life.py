"""Life and death of containers in real runs: whatever ends a run, nothing is left of it.

Each test is a row of the table in ``docs/reliability.md``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import docker
import pytest

from pytest_harbor.sandboxes.docker.sweep import OWNER_LABEL
from pytest_harbor.sandboxes.owner import Owner

if TYPE_CHECKING:
    from scratch_project import Project

    from private_daemon import Daemon

pytestmark = [pytest.mark.docker, pytest.mark.slow]

SLOW = """
class Slow:
    name = "slow"
    def run(self, turn):
        with open({began!r}, "w") as began:
            began.write("x")
        turn.sandbox.exec("sleep 600")
"""

DIES = """
import os, signal
class Dies:
    name = "dies"
    def run(self, turn):
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Life:
    """A scratch project whose tasks run in containers that can be told from others'."""

    def __init__(self, project: Project, client: docker.DockerClient) -> None:
        self.project = project
        self.client = client
        self.mark = f"life-{uuid.uuid4().hex[:8]}"
        self.began = project.path / "began"

    def task(self, name: str = "a", *, reward: int = 1, toml: str = "") -> str:
        """A task in a container; returns its name."""
        environment = f'docker_image = "{self.image}"\nnetwork_mode = "no-network"\n'
        self.project.graded(
            f"{self.mark}-{name}",
            reward,
            f"[agent]\ntimeout_sec = 600\n[environment]\n{environment}{toml}",
        )
        return f"{self.mark}-{name}"

    image = ""

    @property
    def containers(self) -> list[str]:
        """Names of what is up, or left."""
        found = self.client.containers.list(all=True, filters={"name": self.mark})
        return [container.name for container in found]

    def start(self, *arguments: str, items: int = 1) -> subprocess.Popen[str]:
        """Start pytest, and wait until that many agents are at work."""
        os.mkfifo(self.began)
        self.project.file("my_agents.py", SLOW.format(began=os.fspath(self.began)))
        running = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "datasets", "-opythonpath=."),
                *("--harbor-agent=my_agents:Slow", "--junitxml=j.xml", *arguments),
            ],
            cwd=self.project.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        # For reading and writing: no end of file between those who write.
        both = os.open(self.began, os.O_RDWR)
        for _ in range(items):
            assert os.read(both, 1) == b"x"
        os.close(both)
        return running

    def run(self, *arguments: str) -> pytest.RunResult:
        return self.project.run_apart(
            "datasets", "-opythonpath=.", "--junitxml=j.xml", *arguments
        )

    @property
    def junit(self) -> list[ET.Element]:
        """The cases of the JUnit file, which must be whole."""
        return list(ET.parse(self.project.path / "j.xml").iter("testcase"))

    def rows(self, name: str = "rollouts_failures.jsonl") -> list[dict[str, Any]]:
        return self.project.rows(name)


@pytest.fixture
def life(
    project: Project, docker_image: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Life]:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # of these tests' own
    client = docker.from_env()
    life = Life(project, client)
    life.image = docker_image
    yield life
    left = life.containers
    for name in left:
        client.api.remove_container(name, force=True, v=True)
    client.close()


@pytest.fixture
def alone(
    life: Life, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Life]:
    """``life`` on a daemon where nobody else can sweep what a dead run left."""
    monkeypatch.setenv("DOCKER_HOST", daemon.url)
    common, life.client = life.client, daemon.client()
    yield life
    life.client.close()
    life.client = common


PRESSED = {
    "ctrl-c": [signal.SIGINT],
    "ctrl-c twice": [signal.SIGINT, signal.SIGINT],
    "terminated": [signal.SIGTERM],
}


@pytest.mark.parametrize("pressed", PRESSED.values(), ids=PRESSED)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_signal_ends_the_run_and_its_containers(life, pressed, workers):
    for name in "ab"[: workers or 1]:
        life.task(name)
    running = life.start(f"-n{workers}", items=workers or 1)
    for number in pressed:
        # Ctrl-C reaches everybody at the terminal, SIGTERM the process that is named.
        send = os.killpg if number == signal.SIGINT else os.kill
        send(running.pid, number)
    out, err = running.communicate(timeout=90)
    assert running.returncode == pytest.ExitCode.INTERRUPTED, out + err
    assert "Traceback" not in err
    assert life.containers == []
    assert life.junit is not None
    assert {row["failure_kind"] for row in life.rows()} == {"cancelled"}


@pytest.mark.parametrize("options", [["-x"], ["--maxfail=1", "-n2"]], ids=["x", "n2"])
def test_the_first_failure_ends_the_run_and_its_containers(life, options):
    for name in "abcd":
        life.task(name, reward=0)
    result = life.run(*options)
    assert result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    assert life.containers == []
    assert 1 <= len(life.junit) <= 3
    started = {row["node_id"] for row in life.rows("started.jsonl")}
    assert len(started) < 4


def test_a_worker_that_dies_takes_no_container_along(life):
    life.task()
    life.project.file("my_agents.py", DIES)
    result = life.run("--harbor-agent=my_agents:Dies", "-n1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*worker 'gw0' crashed while running*"])
    result.stdout.fnmatch_lines(["started, not finished: *"])
    assert life.containers == []
    [case] = life.junit
    assert case.find("error") is not None


def test_a_time_limit_by_signal_ends_the_container(life):
    life.task()
    running = life.start("--timeout=15", "--timeout-method=signal")
    out, _ = running.communicate(timeout=90)
    assert running.returncode == pytest.ExitCode.TESTS_FAILED, out
    assert life.containers == []
    [case] = life.junit
    assert case.find("error") is not None
    [row] = life.rows()
    assert row["failure_kind"] == "cancelled"


def test_a_time_limit_by_thread_kills_pytest_and_the_next_run_sweeps(alone):
    """pytest-timeout ends the process where it stands: nobody is left to clean up."""
    alone.task()
    running = alone.start("--timeout=15", "--timeout-method=thread")
    running.communicate(timeout=90)
    assert running.returncode == 1
    assert len(alone.containers) == 1
    assert len(alone.rows("started.jsonl")) == 1
    alone.run("--harbor-agent=nop")
    assert alone.containers == []


def test_a_time_limit_by_thread_in_a_worker_is_swept_at_once(life):
    life.task()
    running = life.start("--timeout=15", "--timeout-method=thread", "-n1")
    out, _ = running.communicate(timeout=90)
    assert "crashed while running" in out
    assert life.containers == []
    assert len(life.junit) == 1


def test_a_container_that_does_not_start_is_removed(life):
    # The runtime cannot make a folder there.
    life.task(toml='workdir = "/bin/sh/impossible"\n')
    result = life.run("--harbor-retries=1")
    result.assert_outcomes(errors=1)
    rows = life.rows()
    assert {row["failure_kind"] for row in rows} == {"harbor:sandbox_start_failed"}
    assert life.containers == []
    [case] = life.junit
    assert case.find("error") is not None


def test_what_a_killed_run_left_is_swept_on_demand(alone):
    alone.task()
    running = alone.start()
    running.kill()
    running.communicate()
    dead = Owner.parse(str(Owner.current()))
    assert dead is not None
    labels = {OWNER_LABEL: f"{dead.place}/{2**22 + 1}:1"}
    api = alone.client.api
    network = api.create_network(f"{alone.mark}-network", labels=labels)["Id"]
    api.create_volume(f"{alone.mark}-volume", labels=labels)
    [left] = alone.containers
    result = alone.project.run_apart("--harbor-sweep")
    assert result.ret == 0
    lines = result.stdout.lines
    assert f"harbor: docker: removed container {left} of task {alone.mark}-a" in lines
    assert f"harbor: docker: removed network {alone.mark}-network" in lines
    assert f"harbor: docker: removed volume {alone.mark}-volume" in lines
    assert any(line.startswith("harbor: local: ") for line in lines)
    assert not any("session starts" in line for line in lines)
    assert alone.containers == []
    assert [net["Id"] for net in api.networks() if net["Id"] == network] == []
    assert not [
        volume
        for volume in api.volumes()["Volumes"] or ()
        if volume["Name"] == f"{alone.mark}-volume"
    ]


def test_a_kept_container_is_there_to_be_entered_and_swept_by_nobody(life):
    life.task(reward=0)
    result = life.run("--harbor-keep=failed")
    result.assert_outcomes(failed=1)
    [kept] = life.containers
    result.stdout.fnmatch_lines([f"kept: docker exec -it {kept} sh *{kept}*"])
    swept = life.project.run_apart("--harbor-sweep")
    swept.stdout.fnmatch_lines(
        [f"harbor: docker: kept container {kept}: docker rm -f -v {kept}"]
    )
    assert life.containers == [kept]
    entered = subprocess.run(
        ["docker", "exec", kept, "cat", "/logs/verifier/reward.txt"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert entered.stdout == "0\n"
