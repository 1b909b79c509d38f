"""Networks of Docker sandboxes: allowlists have one way out, phases are switched."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator

import docker
import pytest
from docker.errors import NotFound

from pytest_harbor.errors import (
    SandboxLost,
    SandboxStartFailed,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.docker.client import DaemonError
from pytest_harbor.sandboxes.docker.egress import NewEgress
from pytest_harbor.sandboxes.docker.provider import DockerProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Network

pytestmark = [pytest.mark.docker, pytest.mark.anyio, pytest.mark.slow]

SERVE = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"served")
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""
WAIT = """
import socket, sys, time
end = time.monotonic() + 30
while time.monotonic() < end:
    try:
        socket.create_connection((sys.argv[1], 8000), 1).close()
        break
    except OSError:
        pass
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def client(python_image: str) -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="module")
def outside(client: docker.DockerClient, python_image: str) -> Iterator[str]:
    """Address of a server in a container of Docker's common network."""
    server = client.containers.run(
        python_image, ["-c", SERVE], entrypoint="python3", detach=True, init=True
    )
    try:
        server.reload()
        networks = server.attrs["NetworkSettings"]["Networks"]
        address = networks["bridge"]["IPAddress"]
        server.exec_run(["python3", "-c", WAIT, address])
        yield address
    finally:
        server.remove(force=True)


@pytest.fixture
async def provider(python_image: str) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider(egress_image=python_image)
    yield provider
    await provider.aclose()


@pytest.fixture
def start(provider: DockerProvider, python_image: str):
    async def start(network, *hosts, phases=(), **fields):
        spec = EnvironmentSpec(
            image=python_image,
            network=network,
            allowed_hosts=hosts,
            phase_networks=phases,
            **fields,
        )
        return await provider.start(spec, name="networks", labels={})

    return start


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


class Listener:
    """What listens on all of this machine's addresses; it notes who came."""

    def __init__(self) -> None:
        self.tcp = socket.create_server(("", 0))
        self.port = self.tcp.getsockname()[1]
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("", self.port))
        self.came: list[str] = []
        self._threads = [
            threading.Thread(target=self._tcp, daemon=True),
            threading.Thread(target=self._udp, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _tcp(self) -> None:
        while True:
            try:
                one, _ = self.tcp.accept()
            except OSError:
                return
            self.came.append("tcp")
            threading.Thread(target=self._echo, args=[one], daemon=True).start()

    def _echo(self, one: socket.socket) -> None:
        # A probe that leaves without reading its answer resets the connection.
        with one, contextlib.suppress(ConnectionError):
            while data := one.recv(64):
                one.sendall(data)

    def _udp(self) -> None:
        while True:
            data, address = self.udp.recvfrom(64)
            if data == b"end":
                return
            self.came.append("udp")
            self.udp.sendto(data, address)

    def close(self) -> None:
        self.udp.sendto(b"end", ("127.0.0.1", self.port))
        self._threads[1].join()
        self.udp.close()
        self.tcp.shutdown(socket.SHUT_RDWR)
        self.tcp.close()


async def python(sandbox, code: str, *arguments: str) -> str:
    done = await sandbox.exec(["python3", "-c", code, *arguments], timeout_seconds=60)
    assert done.ok, done.output
    return done.stdout.strip()


GET = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print("failed", error)
"""


async def test_an_allowlist_lets_through_what_it_names(start, outside):
    sandbox = await start("allowlist", outside)
    assert await python(sandbox, GET, f"http://{outside}:8000/") == "served"
    answer = await python(sandbox, GET, "http://other.test/")
    assert answer == "403 pytest-harbor: other.test is not in the task's allowed_hosts"
    assert "Tunnel connection failed: 403" in await python(
        sandbox, GET, "https://other.test/"
    )
    assert await sandbox.network_refusals() == (
        "not in allowed_hosts, so refused: other.test:80, other.test:443",
    )
    assert await sandbox.network_refusals() == ()
    with pytest.raises(UnsupportedByProvider, match="allowlist"):
        await sandbox.address()


OTHER_WAYS = """
import http.client, json, os, re, socket, sys, urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
outside, port, hosts = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
os.environ["RES_OPTIONS"] = "timeout:3 attempts:1"
own = socket.gethostbyname(socket.gethostname())
hosts += [re.sub(r"[.]\\d+$", ".1", own)]

def tcp(host, port):
    with socket.socket(socket.AF_INET) as one:
        one.settimeout(3)
        one.connect((host, port))

def udp(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(3)
        one.sendto(b"x", (host, port))
        one.recv(512)

def proxy(host, port):
    try:
        urllib.request.urlopen(f"http://{host}:{port}/", timeout=5)
    except http.client.HTTPException:
        pass  # something answered

def ipv6():
    lines = open("/proc/net/if_inet6").read().splitlines()
    if all(line.endswith("lo") for line in lines if line):
        raise OSError("the loopback alone")

probes = {
    "tcp outside": partial(tcp, outside, 8000),
    "name": partial(socket.getaddrinfo, "deb.debian.org", 80),
    "ipv6": ipv6,
    "raw": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
    "docker.sock": partial(os.stat, "/var/run/docker.sock"),
}
for host in hosts:
    probes["tcp " + host] = partial(tcp, host, port)
    probes["udp " + host] = partial(udp, host, port)
for host in (*hosts, "169.254.169.254"):
    probes["proxy " + host] = partial(proxy, host, port)

def state(probe):
    try:
        probe()
    except OSError:
        return "closed"
    return "open"

# What is closed says nothing: they wait for their time limits together.
with ThreadPoolExecutor(len(probes)) as pool:
    print(json.dumps(dict(zip(probes, pool.map(state, probes.values())))))
"""


def own_addresses() -> list[str]:
    """This machine's: of Docker's bridge, and that it has to the outside."""
    client = docker.from_env()
    bridge = client.networks.get("bridge").attrs["IPAM"]["Config"][0]
    client.close()
    found = [bridge.get("Gateway", "172.17.0.1")]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            found.append(probe.getsockname()[0])
        except OSError:
            pass
    return found


async def test_there_is_no_other_way_out(start, outside, listener):
    hosts = own_addresses()
    sandbox = await start("allowlist", "other.test", phases=(Network("public"),))
    arguments = [outside, str(listener.port), *hosts]
    closed = json.loads(await python(sandbox, OTHER_WAYS, *arguments))
    open_ways = {way for way, state in closed.items() if state == "open"}
    assert open_ways == set()
    assert listener.came == []
    # The same probes find their way where there is one.
    await sandbox.set_network(Network("public"))
    public = json.loads(await python(sandbox, OTHER_WAYS, *arguments))
    assert {"tcp outside", f"tcp {hosts[0]}", f"udp {hosts[0]}"} <= {
        way for way, state in public.items() if state == "open"
    }


async def test_an_allowlist_of_nothing_is_no_network(start, client):
    sandbox = await start("allowlist")
    names = await python(sandbox, "import os; print(os.listdir('/sys/class/net'))")
    assert names == "['lo']"
    beside = f"pytest-harbor.beside={sandbox.id}"
    assert client.containers.list(filters={"label": beside}) == []


LOOPBACK = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
print(len(server.accept()))
"""


async def test_without_network_there_is_a_loopback(start, outside):
    sandbox = await start("no-network")
    assert await python(sandbox, LOOPBACK) == "2"
    assert (await python(sandbox, GET, f"http://{outside}:8000/")).startswith("failed")


TALK = """
import socket, sys
talk = socket.create_connection((sys.argv[1], int(sys.argv[2])))
talk.settimeout(2)
while True:
    open("/tmp/ask").read()
    try:
        talk.sendall(b"x")
        word = "answered" if talk.recv(1) else "ended"
    except OSError as error:
        word = "silent"
    with open("/tmp/told", "w") as told:
        told.write(word)
"""
ASK = "echo > /tmp/ask; cat /tmp/told"


async def test_phases_have_their_networks_and_cut_what_was_open(
    start, outside, listener
):
    allowed = Network("allowlist", (outside,))
    other = Network("allowlist", ("other.test",))
    closed = Network("no-network")
    sandbox = await start("public", phases=(closed, allowed, other))
    url = f"http://{outside}:8000/"
    await sandbox.exec("mkfifo /tmp/ask /tmp/told")
    address = own_addresses()[0]
    await sandbox.spawn(["python3", "-c", TALK, address, str(listener.port)])
    assert (await sandbox.exec(ASK, timeout_seconds=30)).stdout == "answered"

    await sandbox.set_network(closed)
    assert (await sandbox.exec(ASK, timeout_seconds=30)).stdout == "silent"
    assert (await python(sandbox, GET, url)).startswith("failed")
    await sandbox.set_network(allowed)
    assert (await sandbox.exec(ASK, timeout_seconds=30)).stdout == "silent"
    assert await python(sandbox, GET, url) == "served"
    await sandbox.set_network(other)
    assert (await python(sandbox, GET, url)).startswith("403")
    await sandbox.set_network(Network("public"))
    assert await python(sandbox, GET, url) == "served"
    assert await python(sandbox, "import os; print('http_proxy' in os.environ)") == (
        "False"
    )


async def test_a_container_without_network_gets_one_for_a_phase(start, outside):
    sandbox = await start("no-network", phases=(Network("public"),))
    url = f"http://{outside}:8000/"
    assert (await python(sandbox, GET, url)).startswith("failed")
    await sandbox.set_network(Network("public"))
    assert await python(sandbox, GET, url) == "served"
    await sandbox.set_network(Network("no-network"))
    assert (await python(sandbox, GET, url)).startswith("failed")


def beside(client: docker.DockerClient, name: str) -> list[str]:
    """What was made for one sandbox and is there, its proxy and network."""
    label = {"label": f"pytest-harbor.beside={name}"}
    containers = client.api.containers(all=True, filters=label)
    networks = client.api.networks(filters=label)
    return [
        *(item["Names"][0].lstrip("/") for item in containers),
        *(item["Name"] for item in networks),
    ]


async def test_proxy_and_network_end_with_the_sandbox(
    start, client, provider, python_image
):
    sandbox = await start("allowlist", "a.org")
    assert beside(client, sandbox.id) == [
        f"{sandbox.id}-egress-proxy",
        f"{sandbox.id}-egress",
    ]
    await sandbox.stop()
    await provider.aclose()
    assert beside(client, sandbox.id) == []


async def test_a_proxy_that_dies_is_an_outage(start, client):
    sandbox = await start("allowlist", "a.org")
    proxy = client.containers.get(f"{sandbox.id}-egress-proxy")
    proxy.kill()
    proxy.wait()
    with pytest.raises(SandboxLost, match=r"egress proxy .* is gone.*exit code 137"):
        await sandbox.network_refusals()
    assert (await python(sandbox, GET, "http://a.org/")).startswith("failed")


@pytest.mark.parametrize(
    ("image", "says", "is_final"),
    [
        ("busybox", "cannot run the egress proxy: .*python3", True),
        ("127.0.0.1:1/none:1", "ini harbor_egress_image = 127.0.0.1:1/none:1", False),
    ],
)
async def test_without_an_image_for_the_proxy_nothing_starts(
    client, docker_image, image, says, is_final
):
    provider = DockerProvider(egress_image=image.replace("busybox", docker_image))
    spec = EnvironmentSpec(
        image=docker_image, network="allowlist", allowed_hosts=("a.org",)
    )
    labels = {"test-networks": os.urandom(4).hex()}
    try:
        with pytest.raises(SandboxStartFailed, match=f"(?s){says}") as caught:
            await provider.start(spec, name="none", labels=labels)
    finally:
        await provider.aclose()
    assert caught.value.is_final is is_final
    [(name, value)] = labels.items()
    left = {"label": f"{name}={value}"}
    assert client.containers.list(all=True, filters=left) == []
    assert client.networks.list(filters=left) == []


async def test_a_second_network_that_fails_leaves_no_first(
    start, client, provider, monkeypatch
):
    made = []
    make = NewEgress.make

    def make_one(new, daemon):
        if made:
            raise DaemonError("no more networks", 500)
        made.append(make(new, daemon))
        return made[0]

    monkeypatch.setattr(NewEgress, "make", make_one)
    with pytest.raises(SandboxStartFailed, match="no more networks"):
        await start("allowlist", "a.org", phases=(Network("allowlist", ("b.org",)),))
    await provider.aclose()
    with pytest.raises(NotFound):
        client.networks.get(made[0].network)
    with pytest.raises(NotFound):
        client.containers.get(made[0].proxy)


OWNER = """
import anyio, sys
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.docker.provider import DockerProvider

async def main():
    provider = DockerProvider(egress_image=sys.argv[1])
    spec = EnvironmentSpec(
        image=sys.argv[1], network="allowlist", allowed_hosts=("a.org",)
    )
    sandbox = await provider.start(spec, name="orphan", labels={})
    if sys.argv[2] == "keep":
        await sandbox.keep()
    print(sandbox.id, flush=True)
    print(sandbox.how_to_enter(), flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.parametrize("keep", ["keep", "leave"])
async def test_a_sweep_takes_both_or_neither(provider, client, python_image, keep):
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", OWNER, python_image, keep],
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        orphan = owner.stdout.readline().strip()
        way = owner.stdout.readline()
        owner.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        swept = await provider.sweep()
    plain = orphan.removesuffix("-kept")
    if keep == "leave":
        assert f"network {plain}-egress" in swept.removed
        assert beside(client, plain) == []
        with pytest.raises(NotFound):
            client.containers.get(orphan)
        return
    removal = f"docker rm -f -v {orphan} {plain}-egress-proxy; docker network rm {plain}-egress"
    assert f"container {orphan}: {removal}" in swept.kept
    assert len(beside(client, plain)) == 2
    command = way.partition("(remove it: ")[2].strip().removesuffix(")")
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221
    assert beside(client, plain) == []
