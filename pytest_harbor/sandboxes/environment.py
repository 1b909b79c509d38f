"""What a sandbox is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pytest_harbor.sandboxes.install_script import InstallScript

NetworkMode: TypeAlias = Literal["public", "no-network", "allowlist"]
User: TypeAlias = str | int
"""A user name, a uid, or (Docker only) ``name:group``."""


@dataclass(frozen=True)
class Limits:
    """Resources of a sandbox; ``None`` leaves the provider's default (spec 3.4)."""

    cpus: float | None = None
    memory_mib: int | None = None
    storage_mib: int | None = None


@dataclass(frozen=True)
class Network:
    """What a sandbox may reach (spec 3.12)."""

    mode: NetworkMode = "public"
    allowed_hosts: tuple[str, ...] = ()
    """Of an ``allowlist``: names, ``*.`` patterns, addresses, ranges."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """What a sandbox is made of, every template resolved.

    Exactly one of ``image`` and ``build_context`` is set for a container;
    neither means the provider's own userland (local sandbox only).
    """

    image: str | None = None
    build_context: Path | None = None
    """Host folder with a ``Dockerfile``."""
    files: Path | None = None
    """Host folder whose content is copied into the working directory at start
    (root-owned); ``Dockerfile`` and ``docker-compose.yaml`` in it are left out."""
    read_only_folders: tuple[Path, ...] = ()
    """Host folders, or files, that are seen under their own paths and cannot be written
    to: an interpreter's packages (local sandbox only)."""
    compose_file: Path | None = None
    """Services beside the agent's sandbox, which is its service ``main`` (spec 18)."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What ``${NAME}`` in the Compose file stands for, beside ``env``."""
    workdir: str | None = None
    """Working directory, created if absent; ``None`` means the image's own, or
    ``/app`` where there is no image."""
    env: Mapping[str, str] = field(default_factory=dict)
    user: User | None = None
    """Default user of commands; ``None`` means the image's own (root locally)."""
    network: NetworkMode = "public"
    allowed_hosts: tuple[str, ...] = ()
    phase_networks: tuple[Network, ...] = ()
    """Others that ``Sandbox.set_network`` will be asked for."""
    limits: Limits = Limits()
    start_timeout_seconds: float = 600.0
    """Bound for building or pulling the image and, again, for the start."""
    force_build: bool = False
    install: InstallScript | None = None
    """The agent's software; a verifier's own sandbox has none."""
    platform: str | None = None
    """What an image is built for (``linux/amd64``); ``None`` means the daemon's own."""

    @property
    def own_network(self) -> Network:
        """The network that it starts with."""
        return Network(self.network, self.allowed_hosts)
