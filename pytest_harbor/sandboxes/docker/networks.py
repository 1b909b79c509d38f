"""Which networks a container is in, from phase to phase (spec 3.12, Q21)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import docker

from pytest_harbor.errors import SandboxLost, UnsupportedByProvider
from pytest_harbor.sandboxes.docker.client import DaemonError, Engine, daemon_errors
from pytest_harbor.sandboxes.docker.egress import BRIDGE, Egress, denied
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Network

NO_NETWORK: Final = "none"

_NOWHERE = "192.0.2.1"
"""An address that nobody has: a closed network has nobody to ask for names."""

_TOLD = 10


def networks_of(spec: EnvironmentSpec) -> tuple[Network, ...]:
    """The networks that a sandbox will be in, its own first."""
    return tuple(dict.fromkeys([spec.own_network, *spec.phase_networks]))


def needs_proxy(network: Network) -> bool:
    """True for an allowlist with something on it; without, nothing is let through."""
    return network.mode == "allowlist" and bool(network.allowed_hosts)


@dataclass
class Networks:
    """The networks of one container."""

    current: Network
    every: Sequence[Network] = ()
    egresses: Mapping[Network, Egress] = field(default_factory=dict)
    _attached: str | None = None
    _told: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls, spec: EnvironmentSpec, egresses: Mapping[Network, Egress] | None = None
    ) -> Networks:
        """Those of ``spec``, the ones with a proxy being up."""
        made = cls(spec.own_network, networks_of(spec), egresses or {})
        made._attached = made._name(made.current) or NO_NETWORK
        return made

    def host_config(self) -> Mapping[str, Any]:
        """What a new container is told of them."""
        config: dict[str, Any] = {"network_mode": self._attached}
        if not self.egresses:
            return config
        # Docker resolves names for every network that is not the common one, and some
        # versions of it ask this machine's own resolver: that would be a way out.
        servers: Sequence[str] = ()
        if any(network.mode == "public" for network in self.every):
            servers = next(iter(self.egresses.values())).nameservers
        config["dns"] = list(servers) or [_NOWHERE]
        # Raw packets could be addressed to this machine's end of the bridge.
        config["cap_drop"] = ["NET_RAW"]
        if any(egress.has_ipv6 for egress in self.egresses.values()):
            # The bridge may have a link-local address. The container's are off by default
            # where Docker gives none, save in versions that forgot it.
            config["sysctls"] = {"net.ipv6.conf.all.disable_ipv6": "1"}
        return config

    @property
    def variables(self) -> Mapping[str, str]:
        """What commands are told of the proxy."""
        egress = self.egresses.get(self.current)
        if egress is None:
            return {}
        values = {"http_proxy": egress.url, "https_proxy": egress.url}
        values["no_proxy"] = "localhost,127.0.0.1,::1"
        return values | {name.upper(): value for name, value in values.items()}

    async def switch(self, engine: Engine, container: str, wanted: Network) -> None:
        """Take the container out of its network, and into another.

        Between the two it has none. Its open connections end with the interface that
        they went through.

        Raises:
            DaemonError: the daemon refused; the container is in the old one or in none.
        """
        if wanted == self.current:
            return
        joins = self._name(wanted)

        def work(client: docker.APIClient) -> None:
            with daemon_errors():
                if self._attached is not None:
                    client.disconnect_container_from_network(container, self._attached)
                    self._attached = None
                if joins is not None:
                    client.connect_container_to_network(container, joins)
                    self._attached = joins

        await engine.call(work)
        self.current = wanted

    async def refused(self, engine: Engine) -> Sequence[str]:
        """What the current network's proxy refused since it was last asked.

        Raises:
            SandboxLost: the proxy is gone.
        """
        egress = self.egresses.get(self.current)
        if egress is None:
            return ()
        try:
            found = await engine.call(lambda client: denied(client, egress))
        except DaemonError as error:
            raise SandboxLost(
                f"egress proxy {egress.proxy_name} is gone, and with it the network: "
                f"{error.text}"
            ) from error
        new = [item for item in dict.fromkeys(found) if item not in self._told]
        self._told.update(new)
        if not new:
            return ()
        more = len(new) - _TOLD
        rest = f" and {more} more" if more > 0 else ""
        return (f"not in allowed_hosts, so refused: {', '.join(new[:_TOLD])}{rest}",)

    def remove(self, client: docker.APIClient) -> None:
        """Remove what was made for it, the container being gone. Raises DaemonError."""
        for egress in self.egresses.values():
            egress.remove(client)

    @property
    def removal(self) -> str:
        """The commands that remove what was made for it; empty when nothing was."""
        return "".join(f"; {egress.removal}" for egress in self.egresses.values())

    def _name(self, network: Network) -> str | None:
        """The daemon's name of a network; ``None`` for being in none."""
        if network.mode == "public":
            return BRIDGE
        egress = self.egresses.get(network)
        return egress.network if egress is not None else None


def check_enforced(engine: Engine, spec: EnvironmentSpec) -> None:
    """Refuse what Podman would leave open. Raises UnsupportedByProvider."""
    is_filtered = spec.network == "allowlist" and spec.allowed_hosts
    is_project = spec.compose_file is not None and spec.network == "no-network"
    if engine.is_podman and (is_filtered or is_project or spec.phase_networks):
        raise UnsupportedByProvider(
            "network_mode: Podman's internal networks reach this machine. Only Docker's "
            "own daemon enforces 'allowlist', a network of [agent] or [verifier] alone, "
            "and 'no-network' with a Compose file"
        )
