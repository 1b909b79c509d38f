"""Test-wide options and fixtures of pytest-harbor's own suite (tests/ and examples/)."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

LEAKY_PREFIXES = ("HARBOR_", "DOCKER_", "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "CI")

# Container images like to set PYTHONDONTWRITEBYTECODE. Every worker, and every pytest that
# a test starts, would then compile all tests and all of pytest_harbor anew: that doubled
# the time of the collection.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that puts a command in the background has it ignore Ctrl-C, and so would all that it
# starts: tests that press it would wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-docker",
        action="store_true",
        help="tests marked docker or registry fail instead of being skipped when no "
        "Docker daemon or no npm registry answers (for CI)",
    )
    parser.addoption(
        "--real-agents",
        default="claude-code,opencode",
        metavar="NAMES",
        help="agents that tests/episodes/test_real_agents.py installs and runs: some of "
        "claude-code, codex, gemini-cli, opencode, qwen-code",
    )


@pytest.fixture(scope="session")
def docker_problem() -> str | None:
    """Why Docker cannot be used here, or None."""
    if shutil.which("docker") is None and not os.path.exists("/var/run/docker.sock"):  # noqa: PTH110
        return "no Docker daemon: neither a docker command nor /var/run/docker.sock"
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=10)
        client.ping()
        client.close()
    except DockerException as error:
        return f"no Docker daemon: {error}"
    return None


@pytest.fixture(autouse=True)
def _docker_gate(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("docker") is None:
        return
    problem = request.getfixturevalue("docker_problem")
    if problem and request.config.getoption("--require-docker"):
        pytest.fail(problem, pytrace=False)
    if problem:
        pytest.skip(problem)


@pytest.fixture(scope="session")
def registry_problem() -> str | None:
    """Why the npm registry cannot be reached from here, or None."""
    import httpx

    try:
        httpx.head("https://registry.npmjs.org/", timeout=20).raise_for_status()
    except httpx.HTTPError as error:
        return f"no npm registry: {error!r}"
    return None


@pytest.fixture(autouse=True)
def _registry_gate(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("registry") is None:
        return
    problem = request.getfixturevalue("registry_problem")
    if problem and request.config.getoption("--require-docker"):
        pytest.fail(problem, pytrace=False)
    if problem:
        pytest.skip(problem)


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests keep what is installed once: not among the person's own."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _clean_environ(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    """Nothing of the person's shell may change what a test sees."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder))
    for name in list(os.environ):
        if name.startswith(LEAKY_PREFIXES) and name != "DOCKER_HOST":
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def docker_image(docker_problem: str | None) -> str:
    """A small image with bash, busybox and an ``agent`` user, made in a second."""
    assert docker_problem is None
    from docker_images import busybox_image

    return busybox_image()


@pytest.fixture(scope="session")
def compose_program(request: pytest.FixtureRequest) -> Path:
    """Docker Compose; its wheel does not exist for Python 3.10."""
    from pytest_harbor.sandboxes.docker.compose_cli import REMEDY, find_program

    program = find_program()
    if program is None and request.config.getoption("--require-docker"):
        pytest.fail(f"no Docker Compose: {REMEDY}", pytrace=False)
    if program is None:
        pytest.skip(f"no Docker Compose: {REMEDY}")
    return program


@pytest.fixture(scope="session")
def python_image(docker_problem: str | None) -> str:
    """The small image with the Python that runs the tests."""
    assert docker_problem is None
    from docker_images import python_image

    return python_image()


@pytest.fixture(scope="session")
def redis_image(docker_problem: str | None) -> str:
    """The small image with Redis in it, server and command."""
    assert docker_problem is None
    from docker_images import redis_image

    return redis_image()
