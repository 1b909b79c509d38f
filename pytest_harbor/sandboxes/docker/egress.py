"""A network of a sandbox's own with one way out: a proxy that lets through what is allowed.

The network is ``internal`` and its bridge has no address: from it neither the outside nor this
machine can be reached, whatever the protocol. Beside the sandbox sits a container that runs
:mod:`.egress_proxy` and is in Docker's common network, too.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import docker

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.docker.client import NOT_FOUND, DaemonError, daemon_errors
from pytest_harbor.sandboxes.docker.egress_proxy import PORT
from pytest_harbor.sandboxes.docker.sweep import remove_container

BRIDGE: Final = "bridge"
"""Docker's common network, which leads outside."""

_READY_SECONDS = 60.0
_POLL_SECONDS = 0.1
_MEMORY_BYTES = 256 * 1024**2
_PROCESSES = 128
_NOBODY = "65534:65534"
_LAST_LINES = 10
_BAD_REQUEST = 400


@dataclass(frozen=True)
class Egress:
    """A network and its proxy, both up."""

    network: str
    """The daemon's ID of it."""
    network_name: str
    proxy: str
    proxy_name: str
    url: str = ""
    """The proxy's, for those in the network."""
    nameservers: tuple[str, ...] = ()
    """Who resolves names for a container in the common network."""
    has_ipv6: bool = False
    """True when the daemon's kernel knows IPv6."""

    @property
    def removal(self) -> str:
        """The command that removes it."""
        return (
            f"docker rm -f -v {self.proxy_name}; docker network rm {self.network_name}"
        )

    def remove(self, client: docker.APIClient) -> None:
        """Remove both, the sandbox being gone. Raises DaemonError."""
        if self.proxy:
            remove_container(client, self.proxy)
        try:
            with daemon_errors():
                client.remove_network(self.network)
        except DaemonError as error:
            if error.status != NOT_FOUND:
                raise


@dataclass(frozen=True)
class NewEgress:
    """A network and a proxy that are about to be made."""

    image: str
    name: str
    allowed_hosts: tuple[str, ...]
    labels: Mapping[str, str]

    def make(self, client: docker.APIClient) -> Egress:
        """Make both; nothing is left of what fails.

        Raises:
            SandboxStartFailed: the proxy does not run, or the network is not closed.
            DaemonError: the daemon refused.
        """
        with daemon_errors():
            network = client.create_network(
                self.name,
                driver="bridge",
                internal=True,
                # Containers of an internal network still reach this machine by the
                # bridge's address, if it has one.
                options={"com.docker.network.bridge.inhibit_ipv4": "true"},
                labels=dict(self.labels),
            )
        made = Egress(network["Id"], self.name, "", f"{self.name}-proxy")
        try:
            return self._with_proxy(client, made)
        except BaseException:
            with contextlib.suppress(DaemonError):
                proxy = made.proxy_name  # also one whose answer got lost
                remove_container(client, proxy)
            with contextlib.suppress(DaemonError):
                made.remove(client)
            raise

    def _with_proxy(self, client: docker.APIClient, made: Egress) -> Egress:
        proxy = self._create(client, made.proxy_name)
        with self._told_as_ours():
            client.start(proxy)
        # Read while it is in the common network alone: later its names go by another way.
        ready = self._wait(client, proxy)
        with daemon_errors():
            client.connect_container_to_network(proxy, made.network)
            facts = client.inspect_container(proxy)
        own = facts["NetworkSettings"]["Networks"][made.network_name]
        if own.get("GlobalIPv6Address"):
            raise SandboxStartFailed(
                "network_mode = 'allowlist': this daemon gives every network IPv6, by "
                "which an internal one still reaches its machine; switch it off in "
                "default-network-opts of its daemon.json",
                is_final=True,
            )
        return Egress(
            network=made.network,
            network_name=made.network_name,
            proxy=proxy,
            proxy_name=made.proxy_name,
            url=f"http://{own['IPAddress']}:{PORT}",
            nameservers=tuple(ready.get("nameservers") or ()),
            has_ipv6=bool(ready.get("ipv6")),
        )

    def _create(self, client: docker.APIClient, name: str) -> str:
        source = Path(__file__).with_name("egress_proxy.py").read_text("utf-8")
        host_config = client.create_host_config(
            init=True,
            network_mode=BRIDGE,
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=_PROCESSES,
            mem_limit=_MEMORY_BYTES,
        )
        with daemon_errors():
            answer: dict[str, Any] = client.create_container(
                self.image,
                ["-I", "-B", "-u", "-c", source],
                entrypoint=["python3"],
                name=name,
                user=_NOBODY,
                working_dir="/",
                environment={"HARBOR_ALLOWED_HOSTS": json.dumps(self.allowed_hosts)},
                labels=dict(self.labels),
                healthcheck={"test": ["NONE"]},
                host_config=host_config,
            )
        return str(answer["Id"])

    @contextlib.contextmanager
    def _told_as_ours(self) -> Iterator[None]:
        """Say of a proxy that cannot be started that it is the image's fault."""
        try:
            with daemon_errors():
                yield
        except DaemonError as error:
            if error.status in (None, NOT_FOUND) or "python3" not in error.text:
                raise
            raise self._failed(error.text) from error

    def _wait(self, client: docker.APIClient, proxy: str) -> Mapping[str, Any]:
        """What it says of itself when it listens."""
        end = time.monotonic() + _READY_SECONDS
        while time.monotonic() < end:
            with daemon_errors():
                lines = _log(client, proxy)
                ready = next((line for line in lines if line.get("ready")), None)
                if ready is not None:
                    return ready
                state = client.inspect_container(proxy)["State"]
                if not state.get("Running"):
                    raise self._failed(last_words(client, proxy, state))
            time.sleep(_POLL_SECONDS)
        raise SandboxStartFailed(
            f"the egress proxy {proxy[:12]} was not ready in {_READY_SECONDS:g} s"
        )

    def _failed(self, reason: str) -> SandboxStartFailed:
        return SandboxStartFailed(
            f"image {self.image} cannot run the egress proxy: {reason}. It must have "
            "python3 3.10 or newer; ini harbor_egress_image names another",
            is_final=True,
        )


def denied(client: docker.APIClient, egress: Egress) -> list[str]:
    """What the proxy refused so far, ``host:port`` each.

    Raises:
        DaemonError: it is gone.
    """
    with daemon_errors():
        lines = _log(client, egress.proxy)
        state = client.inspect_container(egress.proxy)["State"]
        if not state.get("Running"):
            raise DaemonError(last_words(client, egress.proxy, state), _BAD_REQUEST)
    return [str(line["denied"]) for line in lines if "denied" in line]


def last_words(
    client: docker.APIClient, container: str, state: Mapping[str, Any]
) -> str:
    """How a container ended, and the end of its log."""
    with daemon_errors():
        log = client.logs(container, tail=_LAST_LINES).decode(errors="replace").strip()
    text = "out of memory, " if state.get("OOMKilled") else ""
    text += f"exit code {state.get('ExitCode')}"
    return f"{text}\n{log}" if log else text


def _log(client: docker.APIClient, container: str) -> list[dict[str, Any]]:
    """The lines of its standard output that are its own."""
    found = []
    for line in client.logs(container, stderr=False).splitlines():
        with contextlib.suppress(ValueError):
            read = json.loads(line)
            if isinstance(read, dict):
                found.append(read)
    return found
