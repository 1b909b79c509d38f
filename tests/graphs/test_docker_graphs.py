"""Step tasks in containers: servers of an image's own command, and mixed with local ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import docker
import pytest
from anyio.from_thread import BlockingPortal

from graph_runs import Library
from pytest_harbor.sandboxes.docker.provider import DockerProvider
from pytest_harbor.sandboxes.docker.sweep import SESSION_LABEL
from step_bundles import agent_up, ask, env_up, load, take

pytestmark = [pytest.mark.docker]

# busybox serves files, and scripts below /cgi-bin/; the card says where what is.
ENV_CARD = {
    "name": "library",
    "protocolVersion": "1.0",
    "url": "/cgi-bin/data",
    "additionalInterfaces": [{"url": "/cgi-bin/mcp", "transport": "mcp"}],
    "capabilities": {},
}
MCP = r"""#!/bin/sh
body=$(head -c "$CONTENT_LENGTH")
id=$(printf '%s' "$body" | sed -n 's/.*"id": *\("[^"]*"\|[0-9]*\).*/\1/p')
version=$(printf '%s' "$body" | sed -n 's/.*"protocolVersion": *"\([^"]*\)".*/\1/p')
reply() { printf 'Content-Type: application/json\r\n\r\n{"jsonrpc":"2.0","id":%s,"result":%s}' "$id" "$1"; }
case "$body" in
  *'"initialize"'*) reply "{\"protocolVersion\":\"$version\",\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"library\",\"version\":\"1\"}}" ;;
  *'"tools/list"'*) reply '{"tools":[{"name":"look","inputSchema":{"type":"object"}}]}' ;;
  *) printf 'Status: 202 Accepted\r\n\r\n' ;;
esac
"""
DATA = r"""#!/bin/sh
body=$(head -c "$CONTENT_LENGTH")
id=$(printf '%s' "$body" | sed -n 's/.*"id": *\("[^"]*"\).*/\1/p')
file=$(printf '%s' "$body" | sed -n 's/.*"uri": *"file:\/\/\([^"]*\)".*/\1/p')
[ -n "$file" ] && cp "$file" /loaded
printf 'Content-Type: application/json\r\n\r\n{"jsonrpc":"2.0","id":%s,"result":{}}' "$id"
"""
AGENT_CARD = {
    "name": "boxed",
    "protocolVersion": "0.3.0",
    "url": "/cgi-bin/a2a",
    "preferredTransport": "JSONRPC",
    "version": "1",
    "description": "",
    "skills": [],
    "defaultInputModes": [],
    "defaultOutputModes": [],
    "capabilities": {
        "extensions": [
            {
                "uri": "urn:agentenv:mcp-config/v1",
                "params": {"endpoint": "/cgi-bin/note"},
            }
        ]
    },
}
A2A = r"""#!/bin/sh
body=$(head -c "$CONTENT_LENGTH")
id=$(printf '%s' "$body" | sed -n 's/.*"id": *\("[^"]*"\),.*"method".*/\1/p')
[ -n "$id" ] || id=$(printf '%s' "$body" | sed -n 's/.*"method".*"id": *\("[^"]*"\).*/\1/p')
url=$(sed -n 's/.*"url": *"\([^"]*\)mcp".*/\1/p' /app/artifact/note)
card=$(busybox wget -q -O - "${url%cgi-bin/}.well-known/agent-env.json" | tr -d '"\\')
printf 'Content-Type: application/json\r\n\r\n{"jsonrpc":"2.0","id":%s,"result":{"kind":"message","role":"agent","messageId":"m","parts":[{"kind":"text","text":"%s"}]}}' "$id" "$card"
"""
NOTE = r"""#!/bin/sh
mkdir -p /app/artifact
head -c "$CONTENT_LENGTH" > /app/artifact/note
printf 'Content-Type: application/json\r\n\r\n{}'
"""


def image_files(folder: str, image: str, port: str, files: dict[str, str]):
    """A server's folder: its Dockerfile, and what busybox serves."""
    dockerfile = (
        f"FROM {image}\nCOPY www /www\nRUN chmod -R 755 /www\n"
        f'CMD ["sh", "-c", "echo serving; exec busybox httpd -f -p ${port} -h /www"]\n'
    )
    www = {f"{folder}/www/{name}": text for name, text in files.items()}
    return {f"{folder}/Dockerfile": dockerfile, **www}


def containers_of(provider: DockerProvider) -> list[str]:
    client = docker.from_env()
    try:
        label = f"{SESSION_LABEL}={provider._session}"
        found = client.containers.list(all=True, filters={"label": label})
        return [box.name for box in found]
    finally:
        client.close()


@pytest.fixture(scope="module")
def containers(portal: BlockingPortal, docker_problem) -> Iterator[DockerProvider]:
    if docker_problem:
        pytest.skip(docker_problem)
    provider = DockerProvider()
    yield provider
    portal.call(provider.aclose)
    assert containers_of(provider) == [], "removed by then, in the background"


@pytest.fixture
def boxed(library: Library, containers: DockerProvider, docker_image: str) -> Library:
    """The library's bundle, with an env and an agent that are images."""
    library.providers = {**library.providers, "docker": containers}
    del library.files["envs/library/env.toml"]
    library.files["envs/library/env.toml"] = 'environment_name = "library"\n'
    library.files |= image_files(
        "envs/library",
        docker_image,
        "MCP_PORT",
        {
            ".well-known/agent-env.json": json.dumps(ENV_CARD),
            "cgi-bin/mcp": MCP,
            "cgi-bin/data": DATA,
        },
    )
    library.files |= image_files(
        "agents/boxed",
        docker_image,
        "A2A_PORT",
        {
            ".well-known/agent-card.json": json.dumps(AGENT_CARD),
            "cgi-bin/a2a": A2A,
            "cgi-bin/note": NOTE,
        },
    )
    return library


@pytest.fixture
def run_boxed(portal: BlockingPortal, boxed: Library):
    return lambda *steps, **options: portal.call(partial(boxed.run, *steps, **options))


def text_of(result, entry):
    url = result.context.metadata["collected_artifacts"]["take"]["artifacts"][entry]
    return Path(unquote(url.removeprefix("file://"))).read_text()


def test_an_env_in_a_container_serves_an_agent_in_a_local_sandbox(run_boxed, boxed):
    result = run_boxed(
        env_up(depends_on=[]),
        load(env_id="library", artifact_id="shelves"),
        agent_up(env_ids=["library"]),
        take(),
    )
    assert result.outcome == "unscored", result.failure_reason
    (env,) = result.context.deployed_envs
    assert env.sandbox_type == "docker"
    assert env.mcp_url.endswith(":18765/cgi-bin/mcp")
    assert result.sandboxes == ("docker", "local")
    assert env.mcp_url in text_of(result, "diary.jsonl")


def test_an_agent_in_a_container_reaches_an_env_on_this_host(run_boxed, boxed):
    boxed.env("museum")
    result = run_boxed(
        env_up(env_id="museum"),
        agent_up(a2a_agent_id="boxed", env_ids=["museum"]),
        ask(),
        take(),
    )
    assert result.outcome == "unscored", result.failure_reason
    (env,) = result.context.deployed_envs
    note = json.loads(text_of(result, "note"))
    assert env.mcp_url.startswith("http://127.0.0.1:")
    assert not note["url"].startswith("http://127.")
    assert note["url"].rpartition(":")[2] == env.mcp_url.rpartition(":")[2]
    (reply,) = result.context.prompt_responses
    assert "name: museum" in reply.response, "it read the env's card over there"


def test_an_agent_in_a_container_reaches_an_env_in_another(run_boxed):
    result = run_boxed(
        env_up(),
        load(env_id="library", artifact_id="shelves"),
        agent_up(a2a_agent_id="boxed", env_ids=["library"]),
        ask(),
        take(),
    )
    assert result.outcome == "unscored", result.failure_reason
    assert result.sandboxes == ("docker",)
    (env,) = result.context.deployed_envs
    assert json.loads(text_of(result, "note"))["url"] == env.mcp_url
    (reply,) = result.context.prompt_responses
    assert "name: library" in reply.response, "it read the env's card over there"


def test_an_image_that_cannot_be_built_shows_the_builds_tail(run_boxed, boxed):
    boxed.files["envs/library/Dockerfile"] = (
        boxed.files["envs/library/Dockerfile"] + "RUN echo no paper left && exit 3\n"
    )
    result = run_boxed(env_up())
    assert "no paper left" in result.step("up").error
    assert result.step("up").failure_kind == "harbor:sandbox_start_failed"
    assert result.is_infrastructure


def test_an_image_without_a_command_is_told_what_to_do(run_boxed, boxed, docker_image):
    boxed.files["envs/library/Dockerfile"] = f"FROM {docker_image}\n"
    result = run_boxed(env_up())
    assert result.step("up").error == (
        "env 'library': its image names no command that starts the server; add a CMD to "
        f"{boxed.root}/bundle/envs/library/Dockerfile"
    )


def test_a_server_that_ends_in_its_container_shows_its_log(run_boxed, boxed):
    dockerfile = boxed.files["envs/library/Dockerfile"]
    boxed.files["envs/library/Dockerfile"] = (
        f'{dockerfile}CMD ["sh", "-c", "echo no books; exit 6"]\n'
    )
    result = run_boxed(env_up())
    assert result.step("up").error == (
        "env 'library' ended by itself (exit code 6)\nThe end of its log:\nno books"
    )
