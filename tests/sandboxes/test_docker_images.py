"""Images: pulled from a registry on loopback, and built by what is here."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import docker
import pytest

import registry as registries
from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.docker import long_calls
from pytest_harbor.sandboxes.docker.provider import DockerProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec

pytestmark = [pytest.mark.docker, pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def provider(docker_image: str) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.aclose()


@pytest.fixture(scope="module")
def left_over() -> Iterator[list[str]]:
    """Names of images, removed when nothing runs on them any more."""
    names: list[str] = []
    yield names
    client = docker.from_env()
    for name in names:
        for image in client.images.list(name):
            client.api.remove_image(image.id, force=True)
    client.close()


@pytest.fixture
def registry(left_over) -> Iterator[registries.Registry]:
    with registries.registry() as found:
        left_over.append(found.name)
        yield found


def spec_of(registry: registries.Registry, **changes) -> EnvironmentSpec:
    return EnvironmentSpec(image=registry.name, network="no-network", **changes)


async def start(provider, spec, tell=None):
    return await provider.start(spec, name="pulled", labels={}, tell=tell)


async def refused(provider, spec) -> SandboxStartFailed:
    with pytest.raises(SandboxStartFailed) as failed:
        await start(provider, spec)
    return failed.value


async def test_pull_from_a_registry(provider, registry):
    told: list[str] = []
    sandbox = await start(provider, spec_of(registry), told.append)
    assert (await sandbox.exec("cat /unique")).stdout == registry.image.tag
    assert told[0] == f"pulling image {registry.name}"
    told.clear()
    await start(provider, spec_of(registry), told.append)  # now it is here
    assert told == []


async def test_providers_pull_once_between_them(provider, registry):
    other = DockerProvider()
    async with anyio.create_task_group() as tasks:
        for each in (provider, provider, other):
            tasks.start_soon(start, each, spec_of(registry))
    await other.aclose()
    assert registry.asked["manifests"] <= 2  # by tag, and by digest


async def test_an_image_that_does_not_exist_is_final(provider, registry):
    registry.trouble["manifests"] = lambda handler: handler.fail(
        404, "MANIFEST_UNKNOWN", "manifest unknown"
    )
    error = await refused(provider, spec_of(registry))
    assert error.is_final
    assert f"image {registry.name} is not here and cannot be pulled" in str(error)
    assert "manifest unknown" in str(error)
    assert "Check the name in environment.docker_image" in str(error)


async def test_an_image_that_nobody_may_have_is_final(provider, registry):
    registry.trouble["manifests"] = lambda handler: handler.fail(
        403, "DENIED", "requested access to the resource is denied"
    )
    error = await refused(provider, spec_of(registry))
    assert error.is_final
    assert "docker login" in str(error)


@pytest.mark.parametrize(
    "trouble",
    [
        lambda handler: handler.fail(500, "UNKNOWN", "out of order"),
        lambda handler: handler.fail(429, "TOOMANYREQUESTS", "toomanyrequests: wait"),
        registries.Handler.hang_up,
    ],
    ids=["500", "429", "cut"],
)
async def test_a_registry_that_fails_is_an_outage(provider, registry, trouble):
    registry.trouble["manifests"] = trouble
    error = await refused(provider, spec_of(registry))
    assert not error.is_final, error
    assert "Its registry does not serve it now" in str(error)
    del registry.trouble["manifests"]
    assert (await start(provider, spec_of(registry))).id


async def test_a_registry_that_is_not_there_is_an_outage(provider):
    spec = EnvironmentSpec(image="127.0.0.1:1/none:1", network="no-network")
    error = await refused(provider, spec)
    assert not error.is_final
    assert "connection refused" in str(error)


async def test_a_cut_blob_is_fetched_again(provider, registry):
    registry.trouble["blobs"] = registries.cut_once
    sandbox = await start(provider, spec_of(registry))
    assert (await sandbox.exec("cat /unique")).stdout == registry.image.tag


async def test_a_slow_pull_tells_how_far_it_is(provider, registry, monkeypatch):
    monkeypatch.setattr(long_calls, "TELL_SECONDS", 0.05)
    may_end = threading.Event()
    registry.trouble["blobs"] = registries.slowly(may_end)
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if " of 1 layers" in line:
            may_end.set()

    with anyio.fail_after(30):
        await start(provider, spec_of(registry), tell)
    assert told[0] == f"pulling image {registry.name}"
    assert any(line.startswith(f"{told[0]}: 0 of 1 layers, ") for line in told)
    assert len(set(told)) == len(told)  # what did not move is not told again


async def test_a_pull_that_takes_too_long_is_ended(provider, registry):
    may_end = threading.Event()
    registry.trouble["blobs"] = registries.slowly(may_end)
    try:
        error = await refused(provider, spec_of(registry, start_timeout_seconds=1.0))
    finally:
        may_end.set()
    assert "was not ready within 1 s" in str(error)
    assert f"it was still pulling image {registry.name}" in str(error)
    assert not error.is_final


# Builds


@pytest.fixture
def build(tmp_path: Path, docker_image: str, left_over: list[str]):
    """The spec of a build context from the lines of its Dockerfile."""
    name = f"images{os.getpid()}"
    left_over.append(f"pytest-harbor/{name}")
    numbers = itertools.count()

    def make(lines: str, **changes) -> EnvironmentSpec:
        folder = tmp_path / f"environment{next(numbers)}"
        folder.mkdir()
        text = f"FROM {docker_image}\n{lines}\nLABEL test={os.urandom(8).hex()}\n"
        (folder / "Dockerfile").write_text(text)
        return EnvironmentSpec(build_context=folder, network="no-network", **changes)

    return make


async def built(provider, spec, tell=None):
    return await provider.start(spec, name=f"images{os.getpid()}", labels={}, tell=tell)


async def test_a_build_tells_its_steps(provider, build, monkeypatch):
    monkeypatch.setattr(long_calls, "TELL_SECONDS", 0.02)
    told: list[str] = []
    spec = build("RUN sleep 1 && echo ready > /x")
    await built(provider, spec, told.append)
    assert told[0] == f"building the image of {spec.build_context}"
    assert any("RUN sleep 1 && echo ready" in line for line in told)


async def test_a_build_whose_own_command_fails_is_final(provider, build):
    with pytest.raises(SandboxStartFailed) as failed:
        await built(provider, build("RUN echo no such recipe; exit 3"))
    assert failed.value.is_final


async def test_a_build_without_a_network_is_an_outage(provider, build):
    lines = "RUN echo \"Temporary failure resolving 'deb.debian.org'\" >&2; exit 100"
    with pytest.raises(SandboxStartFailed) as failed:
        await built(provider, build(lines))
    assert not failed.value.is_final


async def test_a_base_image_that_cannot_be_reached_is_an_outage(provider, build):
    spec = build("")
    (spec.build_context / "Dockerfile").write_text("FROM 127.0.0.1:1/none:1\n")
    with pytest.raises(SandboxStartFailed) as failed:
        await built(provider, spec)
    assert not failed.value.is_final


async def test_a_base_image_that_does_not_exist_is_final(provider, build, registry):
    spec = build("")
    name = registry.name.replace(registry.image.tag, "nope")
    (spec.build_context / "Dockerfile").write_text(f"FROM {name}\n")
    with pytest.raises(SandboxStartFailed) as failed:
        await built(provider, spec)
    assert failed.value.is_final, failed.value


def buildkit_command() -> Path | None:
    """A docker command that has BuildKit in it, or the buildx plugin."""
    for folder in os.environ["PATH"].split(os.pathsep):
        command = Path(folder, "docker")
        if not os.access(command, os.X_OK):
            continue
        said = subprocess.run([command, "--version"], capture_output=True, check=False)
        version = re.search(rb"version (\d+)", said.stdout)
        has_buildx = subprocess.run(
            [command, "buildx", "version"], capture_output=True, check=False
        )
        if has_buildx.returncode == 0 or (version and int(version[1]) < 23):
            return command
    return None


@pytest.fixture
def buildkit(monkeypatch, tmp_path) -> None:
    command = buildkit_command()
    if command is None:
        pytest.skip("no docker command here has BuildKit")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").symlink_to(command)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)


KIT = "RUN --mount=type=bind,target=/context cp /context/Dockerfile /copied"


async def test_buildkit_builds_what_needs_it(provider, build, buildkit, monkeypatch):
    monkeypatch.setattr(long_calls, "TELL_SECONDS", 0.02)
    told: list[str] = []
    sandbox = await built(provider, build(f"{KIT} && sleep 1"), told.append)
    assert "RUN --mount" in (await sandbox.exec("cat /copied")).stdout
    assert any("step 2/2 RUN --mount" in line for line in told), told


async def test_buildkit_says_why_it_failed(provider, build, buildkit):
    with pytest.raises(SandboxStartFailed) as failed:
        await built(provider, build("RUN echo no such recipe; exit 3"))
    assert failed.value.is_final
    # As BuildKit says it, of whatever version.
    assert re.search(r"Dockerfile failed: .*exit code: 3\n", str(failed.value)), (
        failed.value
    )
    assert "no such recipe" in str(failed.value)


async def test_buildkit_is_ended_with_its_time(provider, build, buildkit):
    spec = build("RUN sleep 100", start_timeout_seconds=2.0)
    with anyio.fail_after(30):
        with pytest.raises(SandboxStartFailed, match="within 2 s"):
            await built(provider, spec)


async def test_the_classic_builder_can_be_asked_for(
    provider, build, buildkit, monkeypatch
):
    monkeypatch.setenv("DOCKER_BUILDKIT", "0")
    with pytest.raises(SandboxStartFailed) as failed:
        await built(provider, build(KIT))
    assert failed.value.is_final
    assert "needs BuildKit (RUN --mount)" in str(failed.value)
    assert "install the docker buildx plugin" in str(failed.value)


async def test_what_the_classic_builder_understood_needs_nothing(
    provider, build, monkeypatch
):
    monkeypatch.setenv("DOCKER_BUILDKIT", "0")
    spec = build("RUN exit 3")
    dockerfile = spec.build_context / "Dockerfile"
    dockerfile.write_text(f"# syntax=docker/dockerfile:1\n{dockerfile.read_text()}")
    with pytest.raises(SandboxStartFailed) as failed:
        await built(provider, spec)
    assert "BuildKit" not in str(failed.value)


async def test_an_image_for_a_platform_has_a_tag_of_its_own(provider, build):
    plain = await built(provider, build("RUN true"))
    spec = build("RUN true", platform="linux/amd64")
    sandbox = await built(provider, spec)
    assert (await sandbox.exec("true")).ok
    from pytest_harbor.sandboxes.docker.context import BuildSource, image_tag

    folder = spec.build_context
    other = BuildSource(folder, platform="linux/amd64")
    assert image_tag(BuildSource(folder), "x") != image_tag(other, "x")
    assert plain.id != sandbox.id
