"""Installed software as a layer on top of an image, committed once per machine."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import docker

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.api import TASK_LABEL, Tell
from pytest_harbor.sandboxes.docker.client import NOT_FOUND, DaemonError, Engine
from pytest_harbor.sandboxes.docker.container import DockerSandbox
from pytest_harbor.sandboxes.docker.context import REPOSITORY
from pytest_harbor.sandboxes.docker.images import Image
from pytest_harbor.sandboxes.docker.sweep import OWNER_LABEL, SESSION_LABEL
from pytest_harbor.sandboxes.install import Installs, run_install
from pytest_harbor.sandboxes.install_script import InstallScript

AGENT_LABEL: Final = "pytest-harbor.agent"
"""Of an image with an agent's layer; its value is the agent's name."""


class DockerInstalls:
    """The agents' layers of one daemon.

    As other images they are a cache, and never swept: ``docker image ls
    'pytest-harbor/agent-*'`` lists them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._installs = Installs()
        self._known: set[str] = set()
        self._facts: dict[str, Mapping[str, Any]] = {}

    async def on(
        self,
        base: Image,
        install: InstallScript,
        start: Callable[[], Awaitable[DockerSandbox]],
        tell: Tell | None,
        *,
        force: bool,
    ) -> Image:
        """``base`` with the software on top; ``start`` gives a container of ``base``.

        Raises:
            InstallFailed: the script failed.
            SandboxError, DaemonError: infrastructure failed.
        """
        facts = await self._inspected(base.name)
        digest = install.digest(str(facts["Id"]))
        plain = re.sub(r"[^a-z0-9]+", "-", install.name.lower()).strip("-")
        repository = f"{REPOSITORY}/agent-{plain}"
        name = f"{repository}:{digest}"
        found = replace(base, name=name)

        async def find() -> Image | None:
            if name not in self._known and await self._inspect(name) is None:
                return None
            self._known.add(name)
            return found

        async def make() -> Image:
            sandbox = await start()
            try:
                await run_install(sandbox, install)
                await sandbox.commit(repository, digest, list(_changes(facts, install)))
            finally:
                await sandbox.stop()
            self._known.add(name)
            return found

        return await self._installs.once(
            f"docker-{digest}",
            find,
            make,
            what=f"{install.name} in {base.name}",
            tell=tell,
            force=force,
        )

    async def _inspected(self, name: str) -> Mapping[str, Any]:
        if name not in self._facts:
            facts = await self._inspect(name)
            if facts is None:
                raise SandboxStartFailed(f"image {name} was removed in the meantime")
            self._facts[name] = facts
        return self._facts[name]

    async def _inspect(self, name: str) -> Mapping[str, Any] | None:
        def inspect(client: docker.APIClient) -> dict[str, Any]:
            return dict(client.inspect_image(name))  # type: ignore[no-untyped-call]

        try:
            return await self._engine.call(inspect)
        except DaemonError as error:
            if error.status == NOT_FOUND:
                return None
            raise


def _changes(facts: Mapping[str, Any], install: InstallScript) -> Iterator[str]:
    """What the container had otherwise, as the image has it: it stays what it was."""
    config = facts.get("Config") or {}
    yield f"USER {config.get('User') or 'root'}"
    workdir = str(config.get("WorkingDir") or "/")
    # Podman takes quotes for a part of the name; an ordinary one needs none.
    is_plain = re.fullmatch(r"[\w/.@+-]+", workdir, re.ASCII)
    yield f"WORKDIR {workdir if is_plain else json.dumps(workdir)}"
    yield f"ENTRYPOINT {json.dumps(config.get('Entrypoint') or [])}"
    yield f"CMD {json.dumps(config.get('Cmd') or [])}"
    # Containers inherit labels: an owner that is dead by then would have them swept.
    ours = {OWNER_LABEL: "", SESSION_LABEL: "", TASK_LABEL: ""}
    labels = {**ours, AGENT_LABEL: install.name}
    # One each: Podman takes all of a line for the value of its first label.
    yield from (f'LABEL {key}="{value}"' for key, value in labels.items())
