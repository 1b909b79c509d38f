"""Starting, watching and stopping a server, with a sandbox that does as it is told."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pytest_harbor.errors import (
    SandboxLost,
    SandboxStartFailed,
    ServerNotReady,
    UnsupportedByProvider,
)
from pytest_harbor.graphs.ports import reserve_port
from pytest_harbor.graphs.servers import (
    Listening,
    PythonNeed,
    SandboxServer,
    ServerPlan,
    Surroundings,
    start_server,
    url_from,
)
from pytest_harbor.sandboxes.api import ExecResult, Process
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.output import Masker

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Told(Process):
    """A process that ends when the test says so."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.exit_code = 0
        self.error: Exception | None = None

    async def wait(self) -> ExecResult:
        await self.ended.wait()
        if self.error is not None:
            raise self.error
        return ExecResult(self.exit_code, "", "")

    async def kill(self) -> None:
        self.ended.set()

    def end(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.ended.set()


@dataclass
class Box:
    """A sandbox, as far as servers use one."""

    ip: str = "127.0.0.1"
    image_command: tuple[str, ...] = ()
    on_spawn: Callable[[Told, Path, dict[str, str]], None] = lambda *_: None
    id: str = "box-1"
    provider: str = "local"
    spawned: list[tuple[Any, dict[str, str]]] = field(default_factory=list)
    processes: list[Told] = field(default_factory=list)
    stops: int = 0
    stop_error: Exception | None = None

    async def address(self) -> str:
        return self.ip

    async def host_address(self) -> str:
        if not self.ip:
            raise UnsupportedByProvider("no network")
        return self.ip if self.ip.startswith("127.") else "172.17.0.1"

    async def start_command(self) -> tuple[str, ...]:
        return self.image_command

    async def spawn(self, command: Any, *, env: Any, log: Path) -> Told:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.spawned.append((command, dict(env)))
        self.processes.append(Told())
        self.on_spawn(self.processes[-1], log, dict(env))
        return self.processes[-1]

    async def stop(self) -> None:
        self.stops += 1
        if self.stop_error is not None:
            raise self.stop_error


@dataclass
class Bench:
    around: Surroundings
    box: Box
    deaths: list[str] = field(default_factory=list)
    registered: list[SandboxServer] = field(default_factory=list)
    specs: list[EnvironmentSpec] = field(default_factory=list)

    async def start(self, **changes: Any) -> SandboxServer:
        plan = ServerPlan(
            what="env 'library'",
            slug="env-my library/1",
            provider="local",
            spec=EnvironmentSpec(),
            listening=Listening("MCP_PORT", "MCP_HOST", 18765),
            probe=ready,
            command=("serve",),
            ready_seconds=30,
        )
        return await start_server(
            replace(plan, **changes),
            Boxes(self),
            self.around,
            self.registered.append,
        )


@dataclass
class Boxes:
    """A provider, as far as servers use one."""

    bench: Bench

    async def start(self, spec: EnvironmentSpec, **_: Any) -> Box:
        self.bench.specs.append(spec)
        return self.bench.box


async def ready(_: str) -> None:
    return None


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with anyio.create_task_group() as group:
        deaths: list[str] = []

        async def dispose(server: SandboxServer) -> None:
            with anyio.CancelScope(shield=True):
                await server.stop()

        around = Surroundings(
            labels={},
            logs=tmp_path / "servers",
            masker=Masker(["s3cret-key"]),
            background=group,
            is_exposed=False,
            on_death=lambda server: deaths.append(f"{server.what} {server.death}"),
            dispose=dispose,
        )
        bench = Bench(around, Box(), deaths)
        yield bench
        group.cancel_scope.cancel()


async def test_a_server_is_told_where_to_listen(bench):
    server = await bench.start(env={"ENVIRONMENT_NAME": "library"})
    ((command, env),) = bench.box.spawned
    assert command == ("serve",)
    port = int(env.pop("MCP_PORT"))
    assert env == {
        "MCP_HOST": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
        "ENVIRONMENT_NAME": "library",
    }
    assert server.url == f"http://127.0.0.1:{port}"
    assert server.instance_id.startswith("env-my-library-1-")
    assert server.death is None
    assert bench.registered == [server]


async def test_it_listens_on_every_address_where_containers_must_reach_it(bench):
    bench.around = replace(bench.around, is_exposed=True)
    await bench.start()
    assert bench.box.spawned[0][1]["MCP_HOST"] == "0.0.0.0"


async def test_in_a_container_it_has_its_own_port_and_the_images_command(bench):
    bench.box.ip, bench.box.image_command = "172.17.0.7", ("serve", "--all")
    server = await bench.start(command=())
    ((command, env),) = bench.box.spawned
    assert command == ("serve", "--all")
    assert (env["MCP_HOST"], env["MCP_PORT"]) == ("0.0.0.0", "18765")
    assert server.url == "http://172.17.0.7:18765"


async def test_an_image_that_starts_nothing_is_refused_and_stopped(bench):
    with pytest.raises(SandboxStartFailed, match=r"names no command .*; add a CMD"):
        await bench.start(command=(), hint="add a CMD to Dockerfile")
    assert bench.box.stops == 1


async def test_one_that_is_never_ready_is_stopped_with_the_logs_tail(bench):
    def speak(_: Told, log: Path, __: Any) -> None:
        log.write_text("".join(f"line {n} s3cret-key\n" for n in range(60)))

    async def never(_: str) -> str:
        return "it answers 503"

    bench.box.on_spawn = speak
    with pytest.raises(ServerNotReady) as caught:
        await bench.start(probe=never, ready_seconds=0.05)
    lines = str(caught.value).splitlines()
    assert lines[0] == "env 'library' was not ready after 0.05 s: it answers 503"
    assert lines[1] == "The end of its log:"
    assert lines[2:] == [f"line {n} ***" for n in range(30, 60)]
    assert bench.box.stops == 1
    assert bench.deaths == []
    (log,) = bench.around.logs.iterdir()
    assert "s3cret" not in log.read_text()


async def test_one_that_ends_before_it_is_ready_is_not_waited_for(bench):
    bench.box.on_spawn = lambda process, log, _: (log.write_text("oh"), process.end(4))

    async def never(_: str) -> str:
        return "no"

    with anyio.fail_after(30):
        with pytest.raises(ServerNotReady) as caught:
            await bench.start(probe=never)
    assert str(caught.value) == (
        "env 'library' ended by itself (exit code 4)\nThe end of its log:\noh"
    )
    assert bench.deaths == [], "the step tells it"


async def test_a_taken_port_is_another_try(bench):
    def clash_once(process: Told, log: Path, _: Any) -> None:
        if len(bench.box.processes) < 3:
            log.write_text(f"OSError: [Errno 98] {os.strerror(errno.EADDRINUSE)}\n")
            process.end(1)

    async def answers(url: str) -> str | None:
        await anyio.lowlevel.checkpoint()
        return None if len(bench.box.processes) == 3 else "refused"

    bench.box.on_spawn = clash_once
    server = await bench.start(probe=answers)
    ports = [env["MCP_PORT"] for _, env in bench.box.spawned]
    assert len(set(ports)) == 3
    assert server.url.endswith(ports[2])
    assert server.death is None


async def test_a_death_in_mid_run_is_told_once(bench):
    server = await bench.start()
    server.log.write_text("last words")
    bench.box.processes[0].end(9)
    with anyio.fail_after(30):
        while not bench.deaths:
            await anyio.lowlevel.checkpoint()
    assert bench.deaths == [
        "env 'library' ended by itself (exit code 9)\nThe end of its log:\nlast words"
    ]
    assert server.death.startswith("ended by itself")
    assert not server.is_stopped
    await server.stop()
    assert server.death.startswith("ended by itself"), "the cause stays"


async def test_a_lost_sandbox_is_a_death(bench):
    server = await bench.start()
    bench.box.processes[0].error = SandboxLost("the daemon is gone")
    bench.box.processes[0].end(0)
    with anyio.fail_after(30):
        while server.death is None:
            await anyio.lowlevel.checkpoint()
    assert server.death == "was lost: the daemon is gone"


async def test_its_lifetime_ends_it(bench):
    server = await bench.start(ttl_seconds=0.01)
    with anyio.fail_after(30):
        while not server.is_stopped:
            await anyio.lowlevel.checkpoint()
    assert server.death == "reached its lifetime of 0.01 s (ttl_seconds)"
    assert bench.box.stops == 1
    assert len(bench.deaths) == 1


async def test_stopping_is_no_death_and_can_be_repeated(bench):
    server = await bench.start()
    await server.stop()
    await server.stop()
    assert server.death == "was stopped"
    assert (bench.box.stops, bench.deaths) == (1, [])


async def test_a_stop_that_failed_can_be_tried_again(bench):
    server = await bench.start()
    bench.box.stop_error = SandboxLost("busy")
    with pytest.raises(SandboxLost):
        await server.stop()
    assert not server.is_stopped
    bench.box.stop_error = None
    await server.stop()
    assert server.is_stopped


async def test_cancelling_a_start_leaves_nothing(bench):
    async def never(_: str) -> str:
        asked.set()
        return "no"

    asked = anyio.Event()
    async with anyio.create_task_group() as group:

        async def start() -> None:
            await bench.start(probe=never)

        group.start_soon(start)
        await asked.wait()
        group.cancel_scope.cancel()
    assert bench.box.stops == 1


async def test_a_python_command_finds_the_runners_packages(bench):
    await bench.start(command=("python", "server.py"), python=PythonNeed())
    (command, _), (spec,) = bench.box.spawned[0], bench.specs
    assert command[:2] == ("/bin/sh", "-c")
    assert command[-1] == "server.py"
    assert Path(command[-2]).name.startswith("python")
    assert spec.read_only_folders


@pytest.mark.parametrize(
    ("url", "ip", "expected"),
    [
        ("http://127.0.0.1:80/mcp", "127.0.0.1", "http://127.0.0.1:80/mcp"),
        ("http://127.0.0.1:80/mcp", "172.17.0.9", "http://172.17.0.1:80/mcp"),
        ("http://[::1]:80/mcp", "127.0.0.1", "http://[::1]:80/mcp"),
        ("http://localhost/x?y=1", "172.17.0.9", "http://172.17.0.1/x?y=1"),
        ("https://u:p@[::1]:8/a", "172.17.0.9", "https://u:p@172.17.0.1:8/a"),
        ("http://172.17.0.4:80/", "172.17.0.9", "http://172.17.0.4:80/"),
        ("http://mcp.example/a", "172.17.0.9", "http://mcp.example/a"),
    ],
)
async def test_addresses_are_those_of_who_calls(url, ip, expected):
    assert await url_from(url, Box(ip)) == expected
    assert await url_from(url, None) == url


async def test_a_sandbox_without_network_reaches_nothing():
    with pytest.raises(UnsupportedByProvider):
        await url_from("http://172.17.0.4/", Box(""))


def test_a_reserved_port_is_given_to_nobody_but_who_asks_for_it():
    ports = [reserve_port() for _ in range(20)]
    assert len(set(ports)) == 20
    others = []
    for _ in range(200):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            others.append(other.getsockname()[1])
    assert not set(others) & set(ports)
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()
