"""Servers in sandboxes are reached from this host and from other sandboxes."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest

from pytest_harbor.errors import UnsupportedByProvider
from pytest_harbor.sandboxes.api import Provider, Sandbox
from pytest_harbor.sandboxes.docker.provider import DockerProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.provider import LocalProvider

pytestmark = pytest.mark.anyio

PYTHON = str(Path(sys.base_prefix, "bin", "python3"))
SERVE = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port={port})"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def local() -> AsyncIterator[LocalProvider]:
    provider = LocalProvider()
    found = await provider.probe()
    if not found.available:
        pytest.skip(found.reason)
    yield provider
    await provider.aclose()


@pytest.fixture
async def containers() -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.aclose()


async def start(provider: Provider, **fields: object) -> Sandbox:
    spec = EnvironmentSpec(**fields)
    return await provider.start(spec, name="addresses", labels={})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def fetch(address: str, port: int) -> bytes:
    """What a server answers, as soon as it does."""
    with anyio.fail_after(30):
        while True:
            try:
                stream = await anyio.connect_tcp(address, port)
                break
            except OSError:
                await anyio.sleep(0.05)
        async with stream:
            await stream.send(b"GET /page HTTP/1.0\r\n\r\n")
            answer = b""
            async for chunk in stream:
                answer += chunk
            return answer


async def serve_locally(sandbox: Sandbox, port: int) -> None:
    await sandbox.exec("echo served > /app/page")
    await sandbox.spawn([PYTHON, "-c", SERVE.format(port=port)])


async def fetched_in(sandbox: Sandbox, command: Sequence[str]) -> str:
    result = await sandbox.exec(command, timeout_seconds=30)
    assert result.ok, result
    return result.stdout


async def test_a_local_server_is_reached_on_loopback(local):
    server, other, alone = [
        await start(local),
        await start(local),
        await start(local, network="no-network"),
    ]
    port = free_port()
    await serve_locally(server, port)
    assert b"served" in await fetch(await server.address(), port)
    fetching = (
        "import urllib.request as u; "
        f"print(u.urlopen('http://{await other.host_address()}:{port}/page').read())"
    )
    assert "served" in await fetched_in(other, [PYTHON, "-c", fetching])
    for ask in (alone.address, alone.host_address):
        with pytest.raises(UnsupportedByProvider, match="no-network"):
            await ask()


async def test_read_only_folders_are_seen_and_cannot_be_written(local, tmp_path):
    inside = tmp_path / "packages"
    inside.mkdir()
    (inside / "file").write_text("seen")
    (tmp_path / "beside").write_text("hidden")
    sandbox = await start(local, read_only_folders=(inside,), network="no-network")
    assert await sandbox.read_text(str(inside / "file")) == "seen"
    assert await sandbox.read_text(str(tmp_path / "beside")) is None
    assert not (await sandbox.exec(f"echo no > {inside}/file")).ok
    assert not (await sandbox.exec(f"touch {inside}/new")).ok
    assert [entry.name for entry in inside.iterdir()] == ["file"]


async def test_local_sandboxes_have_no_command_of_an_image(local):
    sandbox = await start(local, network="no-network")
    assert await sandbox.start_command() == ()


@pytest.mark.docker
async def test_a_server_in_a_container_is_reached_at_its_address(
    containers, local, docker_image
):
    server = await start(containers, image=docker_image)
    other = await start(containers, image=docker_image)
    neighbour = await start(local)
    await server.exec("mkdir -p /www && echo served > /www/page")
    await server.spawn(["busybox", "httpd", "-f", "-p", "8000", "-h", "/www"])
    address = await server.address()
    assert b"served" in await fetch(address, 8000)
    wget = ["busybox", "wget", "-q", "-O", "-", f"http://{address}:8000/page"]
    assert await fetched_in(other, wget) == "served\n"
    fetching = (
        "import urllib.request as u; "
        f"print(u.urlopen('http://{address}:8000/page').read())"
    )
    assert "served" in await fetched_in(neighbour, [PYTHON, "-c", fetching])


@pytest.mark.docker
async def test_a_container_reaches_what_listens_on_this_host(
    containers, local, docker_image
):
    server, client = await start(local), await start(containers, image=docker_image)
    port = free_port()
    await serve_locally(server, port)
    await fetch("127.0.0.1", port)
    url = f"http://{await client.host_address()}:{port}/page"
    wget = ["busybox", "wget", "-q", "-O", "-", url]
    assert await fetched_in(client, wget) == "served\n"


@pytest.mark.docker
async def test_a_container_without_network_says_so(containers, docker_image):
    alone = await start(containers, image=docker_image, network="no-network")
    for ask in (alone.address, alone.host_address):
        with pytest.raises(UnsupportedByProvider, match="has no network"):
            await ask()


@pytest.mark.docker
async def test_a_container_sees_no_folder_of_this_host(
    containers, docker_image, tmp_path
):
    with pytest.raises(UnsupportedByProvider, match="sees no folder of this host"):
        await start(containers, image=docker_image, read_only_folders=(tmp_path,))


@pytest.mark.docker
async def test_an_image_tells_what_it_runs(containers, docker_image, tmp_path):
    (tmp_path / "Dockerfile").write_text(
        f'FROM {docker_image}\nENTRYPOINT ["busybox"]\nCMD ["httpd", "-f"]\n'
    )
    sandbox = await start(containers, build_context=tmp_path)
    assert await sandbox.start_command() == ("busybox", "httpd", "-f")
