"""The only way out of a sandbox with an allowlist: an HTTP proxy that knows its hosts.

Runs by itself in a container of its own (``python3 -c``), so it imports the standard library
alone (3.10 or newer). It forwards ``http://`` requests and opens tunnels (``CONNECT``) to what
``HARBOR_ALLOWED_HOSTS`` names, a JSON list of host names, ``*.`` patterns, addresses and ranges
(spec 3.12). Names are resolved here and here only; one that leads to a private, loopback,
link-local or otherwise special address is refused unless the list has that address too.

It tells of itself in JSON lines on its standard output: one when it is ready, and one
for each destination that it refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

PORT = 3128
HAS_IPV6 = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").exists()
MAX_CLIENTS = 256
"""At once; more are turned away. What runs behind an allowlist must not exhaust it."""
MAX_TOLD = 200
"""Refused destinations that are told; an agent can think of more."""
MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
CONNECT_SECONDS = 30.0
CHUNK = 64 * 1024

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_SPECIAL = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
    192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24
    224.0.0.0/4 240.0.0.0/4
    ::/96 ::ffff:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32
    2002::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8
"""
SPECIAL = tuple(map(ipaddress.ip_network, _SPECIAL.split()))
"""Where a public name must not lead: private, shared, loopback, link-local (the metadata of
clouds), documentation, multicast; and what carries an IPv4 address in an IPv6 one."""

DROPPED = frozenset(
    {
        *(b"connection", b"proxy-connection", b"keep-alive", b"te", b"upgrade"),
        *(b"proxy-authorization", b"proxy-authenticate", b"host"),
    }
)
"""Headers between client and proxy, and those that are said anew."""


class Refused(Exception):
    """Why a request goes no further; ``status`` is the answer's."""

    def __init__(self, text: str, status: str = "403 Forbidden") -> None:
        super().__init__(text)
        self.status = status


class Rules:
    """What ``allowed_hosts`` allows."""

    def __init__(self, entries: list[str]) -> None:
        self.names: set[str] = set()
        self.suffixes: list[str] = []
        self.networks: list[Network] = []
        for entry in entries:
            if (network := as_network(entry)) is not None:
                self.networks.append(network)
            elif entry.startswith("*."):
                self.suffixes.append(entry[1:])
            else:
                self.names.add(entry)

    def allows_name(self, name: str) -> bool:
        """True for a listed name and for what is below a listed pattern."""
        return name in self.names or any(
            name.endswith(suffix) and len(name) > len(suffix)
            for suffix in self.suffixes
        )

    def names_address(self, address: Address) -> bool:
        """True for what a listed address or range means.

        A range that is wider than a special one does not mean that: ``0.0.0.0/0`` is
        the internet, and not this machine's neighbours.
        """
        address = plain(address)
        special = [span for span in SPECIAL if address in span]
        return any(
            address in network and all(is_within(network, span) for span in special)
            for network in self.networks
        )

    def allows(self, name: str, address: Address) -> bool:
        """True when a connection to ``address``, asked for as ``name``, may be made."""
        if self.names_address(address):
            return True
        is_special = any(plain(address) in span for span in SPECIAL)
        return self.allows_name(name) and not is_special


def as_network(entry: str) -> Network | None:
    """The addresses that an entry means; ``None`` for a name."""
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def is_within(network: Network, span: Network) -> bool:
    """True when all of ``network`` lies in ``span``."""
    return (
        network.version == span.version
        and network.prefixlen >= span.prefixlen
        and network.network_address in span
    )


def plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one is another way to write, if it is one."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


class Proxy:
    """Serves one sandbox."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.clients = 0
        self.told: set[str] = set()

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer one connection: one request, or one tunnel."""
        self.clients += 1
        try:
            await self.answer(reader, writer)
        except Refused as error:
            body = f"pytest-harbor: {error}\n".encode()
            head = (
                f"HTTP/1.1 {error.status}\r\nContent-Type: text/plain\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            with contextlib.suppress(OSError):
                writer.write(head.encode() + body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            pass  # one of the two hung up
        finally:
            self.clients -= 1
            await close(writer)

    async def answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward what is allowed. Raises Refused."""
        if self.clients > MAX_CLIENTS:
            raise Refused("too many connections", "503 Service Unavailable")
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
        except asyncio.LimitOverrunError:
            raise Refused("too long a request", "431 Too Large") from None
        request, *lines = head[:-4].split(b"\r\n")
        try:
            method, target, version = request.decode("ascii").split(" ")
        except ValueError:
            raise Refused("not an HTTP request", "400 Bad Request") from None
        host, port, path = destination(method, target)
        upstream, other = await self.connect(host, port)
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                kept = [line for line in lines if name_of(line) not in DROPPED]
                authority = host if port == 80 else f"{host}:{port}"
                if ":" in host:
                    authority = authority.replace(host, f"[{host}]", 1)
                own = [f"Host: {authority}".encode(), b"Connection: close"]
                first = f"{method} {path} {version}".encode("ascii")
                other.write(b"\r\n".join([first, *own, *kept]) + b"\r\n\r\n")
            await relay(reader, other, upstream, writer)
        finally:
            await close(other)

    async def connect(
        self, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to an address that was looked at. Raises Refused."""
        addresses = await self.addresses(host, port)
        allowed = [item for item in addresses if self.rules.allows(host, item)]
        if not allowed:
            self.tell(f"{host}:{port}")
            if self.rules.allows_name(host):
                raise Refused(
                    f"{host} is in allowed_hosts, but leads to {addresses[0]}, a private "
                    "or special address; allowed_hosts must name that too"
                )
            raise Refused(f"{host} is not in the task's allowed_hosts")
        problems = []
        for address in allowed:
            connection = await opened(address, port)
            if not isinstance(connection, str):
                return connection
            problems.append(connection)
        raise Refused(
            f"{host}:{port} cannot be reached: {problems[0]}", "502 Bad Gateway"
        )

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Where ``host`` is. A name that is not allowed is not even looked up."""
        with contextlib.suppress(ValueError):
            return [ipaddress.ip_address(host)]
        if not self.rules.allows_name(host):
            self.tell(f"{host}:{port}")
            raise Refused(f"{host} is not in the task's allowed_hosts")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Refused(
                f"{host} cannot be resolved: {error}", "502 Bad Gateway"
            ) from None
        texts = dict.fromkeys(str(item[4][0]).partition("%")[0] for item in found)
        return [ipaddress.ip_address(text) for text in texts]

    def tell(self, refused: str) -> None:
        """Say once what was refused."""
        if refused not in self.told and len(self.told) < MAX_TOLD:
            self.told.add(refused)
            say({"denied": refused[:300]})


async def opened(
    address: Address, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | str:
    """A connection, or why there is none."""
    try:
        return await asyncio.wait_for(
            asyncio.open_connection(str(address), port), CONNECT_SECONDS
        )
    except asyncio.TimeoutError:
        return "no answer in time"
    except OSError as error:
        return error.strerror or str(error)


def destination(method: str, target: str) -> tuple[str, int, str]:
    """Host, port and path that a request means. Raises Refused."""
    tunnel = method == "CONNECT"
    try:
        parts = urlsplit(f"//{target}" if tunnel else target)
        host = (parts.hostname or "").rstrip(".")
        port = parts.port or (443 if tunnel else 80)
    except ValueError:
        host = ""
    if not host or not (tunnel or parts.scheme == "http"):
        raise Refused("this is a proxy: ask for http://host/...", "400 Bad Request")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return host, port, path


def name_of(line: bytes) -> bytes:
    """A header's name."""
    return line.partition(b":")[0].strip().lower()


async def relay(
    reader: asyncio.StreamReader,
    other: asyncio.StreamWriter,
    upstream: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Carry both directions until both have ended, or one has failed."""
    tasks = {
        asyncio.ensure_future(copy(reader, other)),
        asyncio.ensure_future(copy(upstream, writer)),
    }
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Carry one direction to its end, and say that it has ended."""
    while data := await source.read(CHUNK):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection, whatever state it is in."""
    writer.close()
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1.0)


def say(facts: dict[str, object]) -> None:
    """A line for whoever reads this container's log."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def nameservers() -> list[str]:
    """Who resolves names here, those that are not this container itself."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/etc/resolv.conf").read_text().splitlines():
            words = line.split()
            if len(words) > 1 and words[0] == "nameserver":
                found.append(words[1])
    return [item for item in found if not item.startswith(("127.", "::1"))]


async def main() -> None:
    """Serve until told to end."""
    proxy = Proxy(Rules(json.loads(os.environ["HARBOR_ALLOWED_HOSTS"])))
    everywhere = "0.0.0.0"  # noqa: S104 - of its container; the address comes later
    server = await asyncio.start_server(
        proxy.serve, everywhere, PORT, limit=MAX_HEAD_BYTES
    )
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    say({"ready": True, "nameservers": nameservers(), "ipv6": HAS_IPV6})
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
