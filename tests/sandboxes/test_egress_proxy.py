"""The proxy of an allowlist by itself: its rules, and what it answers on a socket."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
from collections.abc import AsyncIterator

import anyio
import pytest

from pytest_harbor.sandboxes.docker.egress_proxy import (
    MAX_HEAD_BYTES,
    MAX_TOLD,
    Proxy,
    Rules,
    asyncio,
)

pytestmark = pytest.mark.anyio

PUBLIC, PRIVATE, METADATA = "93.184.216.34", "10.1.2.3", "169.254.169.254"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("entries", "name", "address", "allowed"),
    [
        (["a.org"], "a.org", PUBLIC, True),
        (["a.org"], "b.a.org", PUBLIC, False),
        (["a.org"], "xa.org", PUBLIC, False),
        (["*.a.org"], "b.a.org", PUBLIC, True),
        (["*.a.org"], "c.b.a.org", PUBLIC, True),
        (["*.a.org"], "a.org", PUBLIC, False),
        (["*.a.org"], ".a.org", PUBLIC, False),
        (["*.a.org"], "xa.org", PUBLIC, False),
        ([], "a.org", PUBLIC, False),
        # Names that lead to where they should not.
        (["a.org"], "a.org", PRIVATE, False),
        (["a.org"], "a.org", METADATA, False),
        (["a.org"], "a.org", "127.0.0.1", False),
        (["a.org"], "a.org", "100.64.0.1", False),
        (["a.org"], "a.org", "0.0.0.0", False),
        (["a.org"], "a.org", "224.0.0.1", False),
        (["a.org"], "a.org", "::1", False),
        (["a.org"], "a.org", "fe80::1", False),
        (["a.org"], "a.org", "fd00::1", False),
        (["a.org"], "a.org", f"::ffff:{PRIVATE}", False),
        (["a.org"], "a.org", "64:ff9b::a01:203", False),
        (["a.org"], "a.org", "2002:a01:203::1", False),
        (["a.org"], "a.org", "2606:4700::1", True),
        (["a.org", "10.0.0.0/8"], "a.org", PRIVATE, True),
        (["a.org", PRIVATE], "a.org", f"::ffff:{PRIVATE}", True),
        # Addresses and ranges.
        ([PUBLIC], PUBLIC, PUBLIC, True),
        ([PUBLIC], "93.184.216.35", "93.184.216.35", False),
        (["93.184.0.0/16"], PUBLIC, PUBLIC, True),
        (["10.1.0.0/16"], PRIVATE, PRIVATE, True),
        ([METADATA], METADATA, METADATA, True),
        (["0.0.0.0/0"], PUBLIC, PUBLIC, True),
        (["0.0.0.0/0"], PRIVATE, PRIVATE, False),
        (["0.0.0.0/0"], METADATA, METADATA, False),
        (["a.org", "0.0.0.0/0"], "a.org", PRIVATE, False),
        (["2606:4700::/32"], "2606:4700::1", "2606:4700::1", True),
        (["::/0"], "fe80::1", "fe80::1", False),
    ],
)
def test_rules(entries, name, address, allowed):
    assert Rules(entries).allows(name, ipaddress.ip_address(address)) is allowed


class Bench:
    """A proxy and an upstream on this machine's loopback."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.port = self.upstream = 0

    async def ask(self, text: str, then: bytes = b"") -> bytes:
        """The whole answer; ``then`` is sent after the first bytes of it."""
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            await stream.send(text.replace("\n", "\r\n").encode())
            answer = await stream.receive()
            with contextlib.suppress(OSError, anyio.BrokenResourceError):
                await stream.send(then)
                await stream.send_eof()
            async for chunk in stream:
                answer += chunk
            return answer

    async def serve(self, reader, writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await writer.drain()
        writer.write(await reader.read())
        writer.close()


@pytest.fixture
async def bench(request) -> AsyncIterator[Bench]:
    bench = Bench()
    proxy = Proxy(Rules(getattr(request, "param", ["127.0.0.1", "secret.test"])))
    limit = MAX_HEAD_BYTES
    front = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=limit)
    back = await asyncio.start_server(bench.serve, "127.0.0.1", 0)
    bench.port = front.sockets[0].getsockname()[1]
    bench.upstream = back.sockets[0].getsockname()[1]
    yield bench
    front.close()
    back.close()


async def test_a_request_is_forwarded_without_what_is_the_proxys(bench):
    answer = await bench.ask(
        f"GET http://user@127.0.0.1:{bench.upstream}/a?b=c HTTP/1.1\nHost: other.test\n"
        "Proxy-Authorization: x\nProxy-Connection: keep-alive\nAccept: y\n\n"
    )
    assert answer.endswith(b"\r\n\r\nhi")
    assert bench.requests == [
        b"GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n"
        b"Accept: y\r\n\r\n" % bench.upstream
    ]


async def test_a_tunnel_carries_both_ways_to_the_end(bench):
    target = f"127.0.0.1:{bench.upstream}"
    answer = await bench.ask(
        f"CONNECT {target} HTTP/1.1\nHost: {target}\n\n", then=b"GET\r\n\r\nand more"
    )
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"hiand more")


@pytest.mark.parametrize(
    ("request_line", "status", "says"),
    [
        ("GET http://b.test/ HTTP/1.1", 403, "b.test is not in the task's allowed_h"),
        ("CONNECT b.test:443 HTTP/1.1", 403, "b.test is not in the task's allowed_h"),
        ("CONNECT 10.0.0.1:22 HTTP/1.1", 403, "10.0.0.1 is not in the task's"),
        ("CONNECT [::1]:22 HTTP/1.1", 403, "::1 is not in the task's"),
        ("CONNECT 2130706433:22 HTTP/1.1", 403, "is not in the task's"),
        ("CONNECT secret.test:443 HTTP/1.1", 403, "leads to 10.9.9.9, a private"),
        ("GET / HTTP/1.1", 400, "this is a proxy"),
        ("GET https://127.0.0.1/ HTTP/1.1", 400, "this is a proxy"),
        ("CONNECT 127.0.0.1:x HTTP/1.1", 400, "this is a proxy"),
        ("nonsense", 400, "not an HTTP request"),
        ("GET http://127.0.0.1/\xe9 HTTP/1.1", 400, "not an HTTP request"),
        (f"GET http://127.0.0.1/{'a' * MAX_HEAD_BYTES} HTTP/1.1", 431, "too long"),
        ("CONNECT 127.0.0.1:1 HTTP/1.1", 502, "127.0.0.1:1 cannot be reached"),
    ],
)
async def test_what_goes_no_further_is_told(
    bench, monkeypatch, request_line, status, says
):
    def looked_up(host, port, *others, **options):
        assert host == "secret.test"  # others are not even asked for
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.9.9.9", port))]

    connected = await anyio.connect_tcp("127.0.0.1", bench.port)
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    async with connected as stream:
        await stream.send(f"{request_line}\r\n\r\n".encode("latin-1"))
        answer = b""
        async for chunk in stream:
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert says in answer.decode()
    assert bench.requests == []


async def test_each_refusal_is_logged_once_and_not_without_end(bench, capsys):
    for number in (*range(MAX_TOLD + 5), 0, 1):
        await bench.ask(f"CONNECT host-{number}.test:443 HTTP/1.1\n\n")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"denied": "host-0.test:443"}
    assert len(lines) == MAX_TOLD


async def test_too_many_clients_are_turned_away(bench, monkeypatch):
    monkeypatch.setattr("pytest_harbor.sandboxes.docker.egress_proxy.MAX_CLIENTS", 1)
    async with await anyio.connect_tcp("127.0.0.1", bench.port) as first:
        answer = await bench.ask("CONNECT 127.0.0.1:1 HTTP/1.1\n\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        await first.send_eof()
        async for _ in first:
            pass
    answer = await bench.ask("CONNECT 127.0.0.1:1 HTTP/1.1\n\n")
    assert answer.startswith(b"HTTP/1.1 502 ")
