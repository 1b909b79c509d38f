"""What only the Docker provider promises: images, limits, requests, sweeps."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import docker
import pytest
from docker.errors import NotFound

from pytest_harbor.errors import (
    SandboxLost,
    SandboxStartFailed,
    SandboxUnavailable,
    TransferFailed,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import TASK_LABEL
from pytest_harbor.sandboxes.docker import client as client_module
from pytest_harbor.sandboxes.docker.client import DaemonError
from pytest_harbor.sandboxes.docker.install import AGENT_LABEL
from pytest_harbor.sandboxes.docker.launcher import Launcher
from pytest_harbor.sandboxes.docker.provider import DockerProvider
from pytest_harbor.sandboxes.docker.sweep import OWNER_LABEL
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Limits, Network
from pytest_harbor.sandboxes.install_script import InstallScript
from pytest_harbor.sandboxes.transfer_types import Download, Upload

pytestmark = [pytest.mark.docker, pytest.mark.anyio]

REQUESTS = 11


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def client(docker_image: str) -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture
async def provider() -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.aclose()


@pytest.fixture
def spec(docker_image: str) -> EnvironmentSpec:
    return EnvironmentSpec(image=docker_image, network="no-network")


async def start(provider, spec, **labels):
    return await provider.start(spec, name="test", labels=labels)


@pytest.fixture
def requests_made(monkeypatch) -> list[str]:
    made: list[str] = []
    send = docker.APIClient.send

    def counted(self, request, **options):
        made.append(f"{request.method} {request.path_url}")
        return send(self, request, **options)

    monkeypatch.setattr(docker.APIClient, "send", counted)
    return made


async def test_an_episode_costs_eleven_requests(
    provider, spec, requests_made, tmp_path
):
    await (await start(provider, spec)).stop()  # now the image is known
    await anyio.to_thread.run_sync(_until, lambda: _is_delete(requests_made[-1]))
    requests_made.clear()

    sandbox = await start(provider, spec)
    await sandbox.upload([Upload(b"echo 1 > /app/answer", "/solution/solve.sh")])
    assert (await sandbox.exec("bash /solution/solve.sh")).ok
    await sandbox.download([Download("/logs/artifacts", tmp_path / "artifacts")])
    await sandbox.upload(
        [Upload(b"cat /app/answer > /logs/verifier/reward.txt", "/tests/test.sh")],
        empty=["/tests", "/logs/verifier"],
    )
    assert {"bash", "timeout"} <= await sandbox.initial_tools()
    assert (await sandbox.exec("bash /tests/test.sh", timeout_seconds=60)).ok
    await sandbox.download([Download("/logs/verifier", tmp_path / "verifier")])
    await sandbox.stop()
    await provider.aclose()

    assert (tmp_path / "verifier" / "reward.txt").read_text() == "1\n"
    assert len(requests_made) == REQUESTS, "\n".join(requests_made)


def _is_delete(request: str) -> bool:
    return request.startswith("DELETE")


def _until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Time and processes

ESCAPES = {
    "environment_wiped": "env -i setsid sleep {n} & sleep {n}",
    "wiped_and_orphaned": "(env -i setsid sh -c '/bin/sleep {n} &' &); sleep {n}",
    "another_user": "su agent -c '(setsid sleep {n} &)'; sleep {n}",
    "another_user_wiped": "su agent -c '(env -i setsid /bin/sleep {n} &)'; sleep {n}",
}


ESCAPES_OF = [
    (user, escape)
    for user in ("root", "agent")
    for escape in ESCAPES
    if user == "root" or "another_user" not in escape  # su asks others for a password
]


@pytest.mark.parametrize(("user", "escape"), ESCAPES_OF)
async def test_timeout_finds_processes_that_hide(provider, spec, user, escape):
    sandbox = await start(provider, spec)
    await sandbox.exec("setsid sleep 9000 >/dev/null 2>&1 &", user="agent")
    await sandbox.exec("env -i setsid /bin/sleep 9001 >/dev/null 2>&1 &")
    result = await sandbox.exec(
        ESCAPES[escape].format(n=8123), user=user, timeout_seconds=0.5
    )
    assert result.timed_out
    running = (await sandbox.exec("ps")).stdout
    assert "sleep 8123" not in running
    assert "sleep 9000" in running
    assert "sleep 9001" in running


async def test_kill_spares_what_an_earlier_daemon_starts(provider, spec):
    """A child of an older daemon is not of the command, though neither has a marker."""
    sandbox = await start(provider, spec)
    await sandbox.exec(
        "env -i setsid sh -c 'until test -e /tmp/go; do sleep 0.02; done;"
        " env -i /bin/sleep 7001 & wait' >/dev/null 2>&1 &"
    )
    result = await sandbox.exec("touch /tmp/go; sleep 7002", timeout_seconds=1)
    assert result.timed_out
    running = (await sandbox.exec("ps")).stdout
    assert "sleep 7001" in running
    assert "sleep 7002" not in running


async def test_container_is_killed_when_a_command_cannot_be(
    provider, spec, monkeypatch
):
    sandbox = await start(provider, spec)
    monkeypatch.setattr("pytest_harbor.sandboxes.docker.exec.KILL", "echo not so clean")
    with pytest.raises(SandboxLost, match="whole container was killed"):
        await sandbox.exec("sleep 100", timeout_seconds=0.2)
    with pytest.raises(SandboxLost, match="whole container was killed"):
        await sandbox.exec("true")


async def test_bash_in_the_place_of_sh_does_as_well(provider, spec):
    sandbox = await start(provider, spec)
    await sandbox.exec("ln -sf bash /bin/sh")
    assert (await sandbox.exec('test -n "$BASH_VERSION"')).ok
    result = await sandbox.exec(["sh", "-c", "echo out; kill -9 $$"])
    assert (result.exit_code, result.stdout, result.stderr) == (137, "out\n", "")
    assert (await sandbox.exec(["exit", "3"])).exit_code == 127
    script = "(env -i setsid /bin/sleep 8124 &); sleep 8125"
    assert (await sandbox.exec(script, timeout_seconds=0.5)).timed_out
    running = (await sandbox.exec("ps")).stdout
    assert "sleep 8124" not in running
    assert "sleep 8125" not in running


# Users


async def test_user_with_a_group(provider, spec):
    sandbox = await start(provider, spec)
    result = await sandbox.exec("id -un; id -gn", user="agent:staff")
    assert result.stdout.split() == ["agent", "staff"]


async def test_unknown_user_is_named(provider, spec):
    sandbox = await start(provider, spec)
    with pytest.raises(UnsupportedByProvider, match="'nobody-here'"):
        await sandbox.exec("true", user="nobody-here")
    assert (await sandbox.exec("true")).ok


async def test_default_user_is_that_of_the_image(provider, build, tmp_path):
    sandbox = await start(provider, build("USER agent"))
    assert (await sandbox.exec("id -un")).stdout == "agent\n"
    assert (await sandbox.exec("id -un", user=0)).stdout == "root\n"


# The sandbox's own content cannot get in the way


async def test_emptying_needs_no_program_of_the_sandbox(provider, spec, tmp_path):
    sandbox = await start(provider, spec)
    await sandbox.exec(
        "echo 1 > /logs/verifier/reward.json; mkdir /tests; echo evil > /tests/x;"
        " for tool in rm tar find mkdir ls sh; do printf '#!/bin/bash\\n' > /bin/$tool.new;"
        " chmod +x /bin/$tool.new; done;"
        " for tool in tar find mkdir ls rm; do mv -f /bin/$tool.new /bin/$tool; done"
    )
    await sandbox.upload(
        [Upload(b"true", "/tests/test.sh")], empty=["/tests", "/logs/verifier"]
    )
    logs, tests = await sandbox.download(
        [
            Download("/logs/verifier", tmp_path / "logs"),
            Download("/tests", tmp_path / "tests"),
        ]
    )
    assert logs.status == "empty"
    assert [path.name for path in (tmp_path / "tests").iterdir()] == ["test.sh"]
    assert tests.status == "ok"


async def test_a_link_in_the_place_of_logs_is_replaced(provider, spec, tmp_path):
    sandbox = await start(provider, spec)
    await sandbox.exec("mv /logs /elsewhere; ln -s /elsewhere /logs")
    await sandbox.upload([], empty=["/logs/verifier"])
    result = await sandbox.exec("stat -c %F /logs; stat -c %a /logs/verifier")
    assert result.stdout.splitlines() == ["directory", "777"]


async def test_what_cannot_be_emptied_fails(provider, build):
    sandbox = await start(provider, build("VOLUME /tests"))
    await sandbox.exec("echo evil > /tests/x")
    with pytest.raises(TransferFailed, match="/tests"):
        await sandbox.upload([], empty=["/tests"])


async def test_bytes_of_a_file_are_exact(provider, spec):
    sandbox = await start(provider, spec)
    await sandbox.upload([Upload(bytes(range(256)), "/app/odd")])
    assert await sandbox.read_bytes("/app/odd") == bytes(range(256))
    await sandbox.exec("ln -s odd /app/link; mkfifo /app/pipe")
    assert await sandbox.read_bytes("/app/link", max_bytes=2) == b"\0\1"
    assert await sandbox.read_bytes("/app/pipe") is None


# Limits and configuration


async def test_limits_hold_in_the_container(provider, spec):
    limits = Limits(cpus=0.5, memory_mib=64)
    sandbox = await start(provider, _with(spec, limits=limits))
    result = await sandbox.exec(
        "cd /sys/fs/cgroup;"
        "cat memory.max || cat memory/memory.limit_in_bytes;"
        "cat pids.max || cat pids/pids.max;"
        "cat cpu.max || cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us"
    )
    memory, pids, quota, period = result.stdout.split()
    assert int(memory) == 64 * 1024**2
    assert int(pids) == 4096
    assert int(quota) / int(period) == 0.5
    eaten = await sandbox.exec(
        "head -c 200000000 /dev/zero | tail -c 190000000 | wc -c"
    )
    assert "190000000" not in eaten.stdout


async def test_limits_that_the_daemon_cannot_set_are_left_out(
    provider, spec, monkeypatch
):
    """``storage_mb`` on most file systems, and more processors than there are."""
    asked: list[dict[str, object]] = []
    create = docker.APIClient.create_container

    def refusing(self, *arguments, **options):
        host_config = options["host_config"]
        asked.append(host_config)
        if "StorageOpt" in host_config:  # whatever the file system here is
            raise DaemonError(
                "--storage-opt is supported only for overlay over xfs", 500
            )
        return create(self, *arguments, **options)

    monkeypatch.setattr(docker.APIClient, "create_container", refusing)
    limits = Limits(cpus=100_000, storage_mib=10_240)
    sandbox = await start(provider, _with(spec, limits=limits))
    assert (await sandbox.exec("true")).ok
    storage, cpus = sorted(sandbox.unenforced, reverse=True)
    assert storage.startswith("storage_mb (docker: --storage-opt is supported only")
    assert cpus.lower().startswith("cpus (docker: range of cpus")
    asked.clear()
    limits = Limits(cpus=1, storage_mib=10_240)
    other = await start(provider, _with(spec, limits=limits))
    assert [line.split()[0] for line in other.unenforced] == ["storage_mb"]
    assert [host_config["NanoCpus"] for host_config in asked] == [10**9]
    assert (await start(provider, spec)).unenforced == ()


async def test_an_impossible_limit_is_final(provider, spec):
    with pytest.raises(SandboxStartFailed, match="memory limit") as failed:
        await start(provider, _with(spec, limits=Limits(memory_mib=1)))
    assert failed.value.is_final


EAT = "x=$(head -c 200000000 /dev/zero | tr '\\0' x)"


async def test_processes_that_run_out_of_memory_are_counted(provider, spec):
    """The container lives on, so the daemon itself has nothing to say."""
    sandbox = await start(provider, _with(spec, limits=Limits(memory_mib=64)))
    assert (await sandbox.exec("true")).ok
    assert sandbox.oom_kills == 0
    assert (await sandbox.exec(["bash", "-c", EAT])).exit_code == 137
    assert sandbox.oom_kills == 1
    process = await sandbox.spawn(["bash", "-c", EAT])
    assert (await process.wait()).exit_code == 137
    assert sandbox.oom_kills == 2


async def test_a_container_that_runs_out_of_memory_says_so(provider, spec):
    sandbox = await start(provider, _with(spec, limits=Limits(memory_mib=64)))
    # Let the kernel choose the container's own command first.
    await sandbox.exec("for n in /proc/[0-9]*; do echo 1000 > $n/oom_score_adj; done")
    eaters = " & ".join(["eat"] * 4)
    with pytest.raises(SandboxLost, match=r"ran out of memory.*exit code 137"):
        await sandbox.exec(["bash", "-c", f"eat() {{ {EAT}; }}; {eaters} & wait"])
    with pytest.raises(SandboxLost, match="ran out of memory"):
        await sandbox.exec("true")


async def test_public_network_has_an_interface(provider, spec):
    sandbox = await start(provider, _with(spec, network="public"))
    assert "eth0" in (await sandbox.exec("cat /proc/net/dev")).stdout


async def test_setuid_gives_no_privileges(provider, spec):
    sandbox = await start(provider, spec)
    result = await sandbox.exec("grep NoNewPrivs /proc/self/status", user="agent")
    assert result.stdout.split() == ["NoNewPrivs:", "1"]


async def test_entrypoint_command_and_health_check_of_the_image_are_not_run(
    provider, build, client
):
    image = build('ENTRYPOINT ["/bin/false"]\nCMD ["x"]\nHEALTHCHECK CMD touch /ran')
    sandbox = await start(provider, image)
    assert (await sandbox.exec("echo up")).stdout == "up\n"
    facts = client.api.inspect_container(sandbox.id)
    assert facts["Config"]["Healthcheck"] == {"Test": ["NONE"]}
    assert facts["HostConfig"]["Init"] is True


async def test_working_directory_of_the_image(provider, build):
    sandbox = await start(provider, build("WORKDIR /srv/work"))
    assert sandbox.workdir == "/srv/work"
    assert (await sandbox.exec("pwd")).stdout == "/srv/work\n"


async def test_an_agents_layer_leaves_the_image_what_it_was(provider, build, client):
    spec = build('WORKDIR /srv/work\nENV COLOUR=red\nCMD ["own"]\nUSER agent')
    install = InstallScript("layer-test", "id -un >$AGENT_PREFIX/who")
    spec = replace(spec, install=install)
    try:
        sandbox = await start(provider, spec, **{TASK_LABEL: "some-task"})
        done = await sandbox.exec(
            f"id -un; pwd; echo $COLOUR; cat {install.prefix}/who"
        )
        assert done.stdout.split() == ["agent", "/srv/work", "red", "root"]
        label = f"{AGENT_LABEL}=layer-test"
        [image] = client.images.list(filters={"label": label})
        config = image.attrs["Config"]
        assert config["User"] == "agent"
        assert config["WorkingDir"] == "/srv/work"
        assert config["Cmd"] == ["own"]
        # A container inherits them: whoever started it would be taken for another.
        assert {config["Labels"][key] for key in (OWNER_LABEL, TASK_LABEL)} == {""}
    finally:
        await sandbox.stop()
        await provider.aclose()
        client.images.remove(image.id, force=True)


async def test_killing_sleep_does_not_end_the_sandbox(provider, spec):
    sandbox = await start(provider, spec)
    await sandbox.exec("killall -9 sleep; true")
    assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_labels_say_whose_it_is(provider, spec, client):
    sandbox = await start(provider, spec, **{"pytest-harbor.task": "org/cake"})
    labels = client.containers.get(sandbox.id).labels
    assert labels["pytest-harbor.task"] == "org/cake"
    assert labels["pytest-harbor.session"]
    assert str(os.getpid()) in labels["pytest-harbor.owner"]


def _with(spec: EnvironmentSpec, **changes) -> EnvironmentSpec:
    from dataclasses import replace

    return replace(spec, **changes)


# The end of a sandbox


async def test_dead_container_is_lost_with_its_reason(provider, spec, client):
    sandbox = await start(provider, spec)
    client.api.kill(sandbox.id)
    with pytest.raises(SandboxLost, match="exit code 137"):
        await sandbox.exec("true")


async def test_container_that_dies_under_a_command_is_lost(provider, spec, client):
    sandbox = await start(provider, spec)
    async with anyio.create_task_group() as tasks:
        errors: list[str] = []

        async def long() -> None:
            try:
                await sandbox.exec("touch /up; sleep 6001")
            except SandboxLost as error:
                errors.append(str(error))

        tasks.start_soon(long)
        while await sandbox.read_bytes("/up") is None:  # noqa: ASYNC110
            await anyio.sleep(0.02)
        await anyio.to_thread.run_sync(client.api.kill, sandbox.id)
    assert "is dead" in errors[0]


async def test_stop_does_not_wait_and_aclose_does(spec, client, monkeypatch):
    may_remove = threading.Event()
    removing = threading.Event()
    remove = docker.APIClient.remove_container

    def slow(self, container, **how):
        removing.set()
        assert may_remove.wait(30)
        return remove(self, container, **how)

    monkeypatch.setattr(docker.APIClient, "remove_container", slow)
    provider = DockerProvider()
    sandbox = await start(provider, spec)
    await sandbox.stop()
    assert await anyio.to_thread.run_sync(removing.wait, 30)
    assert client.containers.get(sandbox.id).status == "running"
    may_remove.set()
    await provider.aclose()
    _assert_gone(client, sandbox.id)


async def test_aclose_ends_what_still_runs_although_cancelled(spec, client):
    provider = DockerProvider()
    sandbox = await start(provider, spec)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await provider.aclose()
    _assert_gone(client, sandbox.id)
    with pytest.raises(SandboxUnavailable, match="closed"):
        await start(provider, spec)


async def test_cancelled_start_leaves_nothing(spec, client, monkeypatch):
    provider = DockerProvider()
    label = f"pytest-harbor-test.{time.monotonic_ns()}"
    with anyio.move_on_after(30) as scope:
        begin = docker.APIClient.start

        def start_and_cancel(self, container):
            begin(self, container)
            anyio.from_thread.run_sync(scope.cancel)

        monkeypatch.setattr(docker.APIClient, "start", start_and_cancel)
        await provider.start(spec, name="cancelled", labels={label: "1"})
    assert scope.cancel_called
    await provider.aclose()
    assert client.containers.list(all=True, filters={"label": label}) == []


async def test_kept_container_outlives_its_provider_and_sweeps(
    spec, client, monkeypatch, provider
):
    owner = DockerProvider()
    sandbox = await start(owner, spec, kept="1")
    await sandbox.keep()
    try:
        await owner.aclose()
        monkeypatch.setattr(
            "pytest_harbor.sandboxes.docker.sweep._is_orphan",
            lambda labels: "kept" in labels,
        )
        await provider.sweep()
        assert client.containers.get(sandbox.id).status == "running"
        assert sandbox.id in sandbox.how_to_enter()
    finally:
        client.api.remove_container(sandbox.id, force=True)


def _assert_gone(client: docker.DockerClient, name: str) -> None:
    with pytest.raises(NotFound):
        client.containers.get(name)


OWNER = """
import anyio, sys
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.docker.provider import DockerProvider

async def main():
    provider = DockerProvider()
    spec = EnvironmentSpec(image=sys.argv[1], network="no-network")
    sandbox = await provider.start(spec, name="orphan", labels={})
    print(sandbox.id, flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""


async def test_sweep_removes_what_a_killed_owner_left(provider, spec, client):
    mine = await start(provider, spec)
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", OWNER, spec.image], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        orphan = owner.stdout.readline().strip()
        assert orphan
        await provider.sweep()
        assert client.containers.get(orphan).status == "running"
        owner.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - a zombie now
        assert f"container {orphan}" in (await provider.sweep()).removed
        _assert_gone(client, orphan)
    assert (await mine.exec("true")).ok


# Without a daemon


@pytest.fixture
def no_daemon(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


async def test_no_daemon_is_said_with_a_remedy(no_daemon, provider, spec):
    found = await provider.probe()
    assert not found.available
    assert "--harbor-sandbox local" in found.reason
    assert "--harbor-unavailable skip" in found.reason
    with pytest.raises(SandboxUnavailable, match="no Docker daemon"):
        await start(provider, spec)
    with pytest.raises(SandboxUnavailable):
        await provider.sweep()


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("tcp://127.0.0.1:9", "Connection refused"),
        ("unix:///nowhere/docker.sock", "No such file or directory"),
        ("nonsense:1", "Invalid bind address protocol"),
    ],
)
async def test_a_wrong_docker_host_is_named_in_plain_words(
    monkeypatch, provider, host, says
):
    monkeypatch.setenv("DOCKER_HOST", host)
    reason = (await provider.probe()).reason
    assert reason.startswith(f"no Docker daemon answers at DOCKER_HOST={host}: ")
    assert says in reason
    assert "HTTPConnection" not in reason
    assert "point DOCKER_HOST at a daemon" in reason


async def test_a_daemon_that_is_silent_is_said_to_be(monkeypatch, provider, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/silent.sock")
    monkeypatch.setattr(client_module, "_PROBE_TIMEOUT_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/silent.sock")
        silent.listen()
        reason = (await provider.probe()).reason
    assert "silent.sock: no answer in time. " in reason


async def test_daemon_over_ssh_is_refused_with_a_remedy(monkeypatch, provider):
    monkeypatch.setenv("DOCKER_HOST", "ssh://somewhere")
    assert "ssh -L" in (await provider.probe()).reason


async def test_probe_names_the_version(provider, requests_made):
    found = await provider.probe()
    assert found.available
    assert found.mode.startswith("Docker ")
    assert found.groups
    await provider.probe()
    assert len(requests_made) == 1


async def test_daemon_that_goes_away_is_no_stranger(provider, spec, monkeypatch):
    import requests

    sandbox = await start(provider, spec)
    monkeypatch.setattr(client_module, "RESTART_SECONDS", 0.1)

    def broken(*_, **__):
        raise requests.ConnectionError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(docker.APIClient, "send", broken)
        with pytest.raises(SandboxLost):
            await sandbox.exec("true")
        with pytest.raises(SandboxLost):
            await sandbox.upload([Upload(b"", "/x")])
        with pytest.raises(SandboxLost):
            await sandbox.download([Download("/x", Path("/nowhere"))])
        # It was there: what goes away in mid-run is an outage, and never skipped.
        with pytest.raises(SandboxStartFailed, match="does not answer"):
            await start(provider, spec)


# Images


@pytest.fixture(scope="module")
def run_label(client):
    """A label for the images of this run, which go when its containers have gone."""
    label = f"pytest-harbor-test.run={time.monotonic_ns()}-{os.getpid()}"
    yield label
    for image in client.images.list(filters={"label": label}):
        client.api.remove_image(image.id, force=True)


@pytest.fixture
def build(tmp_path, docker_image, run_label):
    """Make the spec of a build context from the lines of its Dockerfile."""

    def make(lines: str, **files: str) -> EnvironmentSpec:
        folder = tmp_path / f"environment{time.monotonic_ns()}"
        folder.mkdir()
        lines = lines if lines.startswith("FROM") else f"FROM {docker_image}\n{lines}"
        # A label of its own: no test may live on the image of an older one.
        (folder / "Dockerfile").write_text(
            f"{lines}\nLABEL {run_label} test={folder.name}\n"
        )
        for path, text in files.items():
            (folder / path).write_text(text)
        return EnvironmentSpec(build_context=folder, network="no-network")

    return make


UUID = "RUN cat /proc/sys/kernel/random/uuid > /uuid\n"


async def test_image_is_built_once(provider, build, requests_made):
    spec = build("COPY data /data", data="first")
    assert (await (await start(provider, spec)).exec("cat /data")).stdout == "first"
    other = DockerProvider()
    requests_made.clear()
    await start(other, spec)
    await other.aclose()
    assert not [made for made in requests_made if "/build" in made]


async def test_tasks_of_the_same_content_build_once(provider, build, requests_made):
    spec = build(f"RUN sleep 0.5\n{UUID}")
    twin = _with(spec, build_context=spec.build_context.with_name("twin"))
    shutil.copytree(spec.build_context, twin.build_context)
    found: dict[str, str] = {}

    async def look(provider: DockerProvider, spec: EnvironmentSpec, task: str) -> None:
        sandbox = await start(provider, spec, **{TASK_LABEL: task})
        found[task] = (await sandbox.exec("cat /uuid")).stdout

    other = DockerProvider()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look, provider, spec, "one")
        tasks.start_soon(look, other, twin, "two")
    await other.aclose()
    assert len([made for made in requests_made if "/build" in made]) == 1
    first = found["one"]
    assert first == found["two"] != ""
    forcing = DockerProvider()
    await look(forcing, _with(spec, force_build=True), "one")
    await look(forcing, _with(twin, force_build=True), "two")
    await forcing.aclose()
    assert len([made for made in requests_made if "/build" in made]) == 2
    assert first != found["one"] == found["two"]


async def test_changed_content_is_built_anew(provider, build):
    spec = build("COPY . /all", data="first", ignored="x", **{".dockerignore": "ign*"})
    one = await start(provider, spec)
    assert (
        await one.exec("cat /all/data; ls /all")
    ).stdout == "firstDockerfile\ndata\n"
    (spec.build_context / "data").write_text("second")
    other = DockerProvider()
    two = await start(other, spec)
    assert (await two.exec("cat /all/data")).stdout == "second"
    await other.aclose()


def test_tag_follows_content_and_modes_only(tmp_path):
    from pytest_harbor.sandboxes.docker.context import BuildSource, image_tag

    (tmp_path / "Dockerfile").write_text("FROM x")
    (tmp_path / ".dockerignore").write_text("ignored\n")
    tool = tmp_path / "tool"
    tool.write_text("1")
    tool.chmod(0o644)
    first = image_tag(BuildSource(tmp_path), "Org/My Task")
    assert first.startswith("pytest-harbor/org-my-task:")
    (tmp_path / "ignored").write_text("x")
    os.utime(tool, (1, 1))
    assert image_tag(BuildSource(tmp_path), "Org/My Task") == first
    tool.chmod(0o755)
    executable = image_tag(BuildSource(tmp_path), "Org/My Task")
    assert executable != first
    tool.unlink()
    tool.symlink_to("Dockerfile")
    assert image_tag(BuildSource(tmp_path), "Org/My Task") not in (first, executable)


async def test_forced_build_ignores_what_is_there_once(provider, build):
    spec = build(UUID)
    first = (await (await start(provider, spec)).exec("cat /uuid")).stdout
    other = DockerProvider()
    forced = _with(spec, force_build=True)
    second = (await (await start(other, forced)).exec("cat /uuid")).stdout
    third = (await (await start(other, forced)).exec("cat /uuid")).stdout
    await other.aclose()
    assert first != second == third


BUILDER = """
import anyio, pathlib, sys
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.docker.provider import DockerProvider

async def main():
    provider = DockerProvider()
    spec = EnvironmentSpec(build_context=pathlib.Path(sys.argv[1]), network="no-network")
    try:
        await provider.probe()
        print("ready", flush=True)
        sys.stdin.readline()
        sandbox = await provider.start(spec, name="built", labels={})
        print((await sandbox.exec("cat /uuid")).stdout.strip(), flush=True)
    finally:
        await provider.aclose()

anyio.run(main)
"""


def test_two_processes_build_once(build):
    spec = build(f"RUN sleep 0.5\n{UUID}")
    command = [sys.executable, "-c", BUILDER, str(spec.build_context)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen(command, **pipes) as one,
        subprocess.Popen(command, **pipes) as two,
    ):
        for process in (one, two):
            assert process.stdout.readline() == "ready\n"
        for process in (one, two):
            process.stdin.write("go\n")
            process.stdin.flush()
        seen = [process.communicate(timeout=60)[0].strip() for process in (one, two)]
    assert seen[0] == seen[1] != ""


async def test_failed_build_shows_the_end_of_its_log(provider, build):
    spec = build(
        "RUN for n in $(seq 100); do echo line $n; done; echo no such recipe; exit 3"
    )
    with pytest.raises(SandboxStartFailed) as failed:
        await start(provider, spec)
    text = str(failed.value)
    assert str(spec.build_context / "Dockerfile") in text
    assert "returned a non-zero code: 3" in text
    assert "no such recipe" in text
    assert "line 100" in text
    assert "line 50\n" not in text


async def test_failed_build_is_not_repeated_for_those_who_waited(
    provider, build, requests_made
):
    spec = build("RUN sleep 0.5; exit 3")
    errors: list[str] = []

    async def attempt(provider: DockerProvider) -> None:
        with pytest.raises(SandboxStartFailed) as failed:
            await start(provider, spec)
        errors.append(str(failed.value))

    other = DockerProvider()
    async with anyio.create_task_group() as tasks:
        for each in (provider, provider, other):
            tasks.start_soon(attempt, each)
    await other.aclose()
    assert len(errors) == 3
    assert len(set(errors)) == 1
    assert len([made for made in requests_made if "/build" in made]) == 1
    await attempt(provider)  # a retry afterwards does try again
    assert len([made for made in requests_made if "/build" in made]) == 2


async def test_heredoc_without_buildkit_is_explained(provider, build, no_buildx):
    spec = build("RUN <<EOF\necho x\nEOF")
    with pytest.raises(SandboxStartFailed, match="needs BuildKit"):
        await start(provider, spec)


async def test_copy_from_outside_the_context_is_explained(provider, build, no_buildx):
    spec = build("COPY tests/data /data")
    with pytest.raises(SandboxStartFailed, match="hint: the build context is"):
        await start(provider, spec)


async def test_build_that_takes_too_long_is_ended(provider, build):
    spec = _with(build("RUN sleep 100"), start_timeout_seconds=1.0)
    begun = time.monotonic()
    with pytest.raises(SandboxStartFailed) as failed:
        await start(provider, spec)
    assert time.monotonic() - begun < 20
    assert str(failed.value).startswith(f"the image of {spec.build_context} was not")
    assert "within 1 s (environment.build_timeout_sec in task.toml)" in str(
        failed.value
    )
    assert "it was still building" in str(failed.value)


async def test_an_ignore_file_that_is_none(provider, build):
    spec = build("RUN true")
    (spec.build_context / ".dockerignore").write_text("[z-a]\n")
    with pytest.raises(
        SandboxStartFailed, match=r"\.dockerignore: a pattern"
    ) as failed:
        await start(provider, spec)
    assert failed.value.is_final


async def test_context_without_dockerfile(provider, tmp_path):
    with pytest.raises(SandboxStartFailed, match="has no Dockerfile"):
        await start(provider, EnvironmentSpec(build_context=tmp_path))


async def test_image_that_cannot_be_pulled(provider):
    spec = EnvironmentSpec(image="localhost:1/none:1")
    with pytest.raises(SandboxStartFailed) as failed:
        await start(provider, spec)
    assert "localhost:1/none:1" in str(failed.value)
    assert "docker pull" in str(failed.value)


async def test_image_without_a_shell_is_explained(provider, build, no_buildx):
    spec = build("FROM scratch\nCOPY Dockerfile /")
    with pytest.raises(SandboxStartFailed, match="has no /bin/sh"):
        await start(provider, spec)


@pytest.fixture
def no_buildx(monkeypatch, tmp_path):
    _fake_docker(monkeypatch, tmp_path, "exit 1")


def _fake_docker(monkeypatch, tmp_path: Path, script: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "docker"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


async def test_buildx_is_used_where_the_command_has_it(
    provider, build, monkeypatch, tmp_path, client, docker_image
):
    spec = build("RUN true")
    _fake_docker(
        monkeypatch,
        tmp_path,
        f'echo "$@" >> {tmp_path}/calls; test "$2" = version && exit 0; '
        "echo step 1; echo cannot solve >&2; exit 5",
    )
    with pytest.raises(SandboxStartFailed, match="failed: cannot solve\nstep 1"):
        await start(provider, spec)
    version, built = (tmp_path / "calls").read_text().splitlines()
    assert version == "buildx version"
    assert built.startswith("buildx build --load --progress=plain")
    assert built.endswith(str(spec.build_context))
    assert "--tag pytest-harbor/test:" in built


# Refusals


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"compose_file": Path("x"), "network": "allowlist"},
            "network_mode: .* for the services of environment/docker-compose.yaml",
        ),
        (
            {"compose_file": Path("x"), "phase_networks": (Network("no-network"),)},
            "network_mode: .* for the services of environment/docker-compose.yaml",
        ),
        ({"image": None}, "docker_image"),
    ],
)
async def test_refused_before_anything_starts(provider, spec, changes, text):
    with pytest.raises(UnsupportedByProvider, match=text):
        provider.check(_with(spec, **changes), [None])
    with pytest.raises(UnsupportedByProvider, match=text):
        await start(provider, _with(spec, **changes))


@pytest.mark.parametrize(
    ("component", "network", "refused"),
    [
        ("Podman Engine", {"network": "allowlist", "allowed_hosts": ("a.org",)}, True),
        ("Podman Engine", {"phase_networks": (Network("public"),)}, True),
        ("Podman Engine", {"compose_file": Path("x")}, True),
        ("Podman Engine", {}, False),
        ("Engine", {"network": "allowlist", "allowed_hosts": ("a.org",)}, False),
    ],
)
async def test_networks_that_podman_would_leave_open(
    provider, spec, component, network, refused
):
    facts = {"ApiVersion": "1.41", "Version": "4", "Components": [{"Name": component}]}
    provider._launcher = Launcher(
        client_module.Engine({}, facts),
        session="",
        max_starts=1,
        no_new_privileges=True,
        egress_image="",
    )
    with (
        pytest.raises(UnsupportedByProvider, match="Podman")
        if refused
        else (contextlib.nullcontext())
    ):
        provider.check(_with(spec, **network), [None])
    provider._launcher = None


def test_docker_is_not_imported_by_looking_the_provider_up():
    code = (
        "import sys, pytest_harbor.sandboxes.docker.provider;"
        " sys.exit('docker' in sys.modules or 'requests' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
