"""Creating a container: its configuration, its limits, its first files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import docker

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.docker import files
from pytest_harbor.sandboxes.docker.client import DaemonError, daemon_errors
from pytest_harbor.sandboxes.docker.images import Image
from pytest_harbor.sandboxes.docker.networks import Networks
from pytest_harbor.sandboxes.docker.scripts import KEEP_ALIVE, MARKER, SHELL
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.transfer_types import Upload

PIDS_LIMIT = 4096
"""Processes and threads per container: stops a fork bomb, not a build with many jobs."""

CPUS = "cpus"
STORAGE = "storage_mb"

_BAD_REQUEST = 400
_CONFIGURATION_FILES = frozenset({"Dockerfile", "docker-compose.yaml"})


@dataclass(frozen=True)
class NewContainer:
    """A container that is about to be created."""

    spec: EnvironmentSpec
    image: Image
    name: str
    workdir: str
    labels: Mapping[str, str]
    no_new_privileges: bool
    networks: Networks

    def create(
        self, client: docker.APIClient, known: dict[str, str]
    ) -> tuple[str, tuple[str, ...]]:
        """Create it; returns its ID, and which limits are not enforced, a line each.

        A limit that this daemon turns out not to know is left out. ``known`` keeps the
        daemon's words for what it refuses to everybody, so that it is not asked again.

        Raises:
            DaemonError: the daemon refused something else.
        """
        refused = {key: text for key, text in known.items() if self._asks_for(key)}
        while True:
            try:
                answer = self._create(client, refused)
                break
            except DaemonError as error:
                limit = refused_limit(error.text)
                if limit is None or limit in refused:
                    raise
                refused[limit] = known[limit] = error.text
        lines = [f"{key} (docker: {text})" for key, text in refused.items()]
        lines += [f"docker: {text}" for text in answer.get("Warnings") or ()]
        return str(answer["Id"]), tuple(lines)

    def _asks_for(self, limit: str) -> bool:
        # More processors than there are may be refused to one task and granted to the next.
        return limit == STORAGE and self.spec.limits.storage_mib is not None

    def _create(
        self, client: docker.APIClient, refused: Mapping[str, str]
    ) -> dict[str, Any]:
        host_config = client.create_host_config(
            init=True,
            pids_limit=PIDS_LIMIT,
            security_opt=["no-new-privileges"] if self.no_new_privileges else [],
            **self.networks.host_config(),
            **self._limits(refused),
        )
        with daemon_errors():
            answer: dict[str, Any] = client.create_container(
                self.image.name,
                ["-c", KEEP_ALIVE],
                entrypoint=[SHELL],
                name=self.name,
                # Root, so that an agent with another user cannot end the sandbox.
                user="0",
                working_dir=self.workdir,
                environment={**self.spec.env, MARKER: "main"},
                labels=dict(self.labels),
                # A check that nobody waits for would only start processes.
                healthcheck={"test": ["NONE"]},
                host_config=host_config,
            )
        return answer

    def _limits(self, refused: Mapping[str, str]) -> dict[str, Any]:
        limits = self.spec.limits
        values: dict[str, Any] = {}
        if limits.cpus is not None and CPUS not in refused:
            values["nano_cpus"] = int(limits.cpus * 1e9)
        if limits.memory_mib is not None:
            values["mem_limit"] = limits.memory_mib * 1024**2
            values["memswap_limit"] = limits.memory_mib * 1024**2
        if limits.storage_mib is not None and STORAGE not in refused:
            values["storage_opt"] = {"size": f"{limits.storage_mib}M"}
        return values

    def fill(self, client: docker.APIClient, container: str) -> None:
        """Put the task's files in, before it starts. Raises as ``files.put``."""
        assert self.spec.files is not None
        upload = Upload(self.spec.files, self.workdir, exclude=_CONFIGURATION_FILES)
        files.put(client, container, [upload])

    def look_at_image(
        self, client: docker.APIClient, container: str
    ) -> tuple[str, ...]:
        """Refuse an image in which nothing can be run; once per image is enough.

        The start itself would not tell: ``init`` starts well and ends at once. Returns the
        artifacts' folder if the image does not have it: what it has is collected.

        Raises:
            SandboxStartFailed: there is no shell.
            DaemonError: the daemon refused.
        """
        if not files.exists(client, container, SHELL):
            raise SandboxStartFailed(
                f"image {self.image.name} has no {SHELL}, so commands cannot run in it; "
                "use an image with a shell",
                is_final=True,
            )
        if files.exists(client, container, files.ARTIFACTS):
            return ()
        return (files.ARTIFACTS,)


def start_error(error: DaemonError, spec: EnvironmentSpec) -> SandboxStartFailed:
    """What a daemon's refusal to start means for the author of the task."""
    if error.status is None:
        return SandboxStartFailed(f"the Docker daemon does not answer: {error.text}")
    what = spec.image or f"the image of {spec.build_context}"
    return SandboxStartFailed(
        f"docker cannot start {what}: {error.text}",
        # What it was asked for is wrong (an impossible limit), and will be; the runtime's
        # own troubles have the same status.
        is_final=error.status == _BAD_REQUEST and "runtime" not in error.text.lower(),
    )


def refused_limit(text: str) -> str | None:
    """Which limit the daemon cannot set, if that is its complaint."""
    lowered = text.lower()
    if "storage-opt" in lowered or "storage option" in lowered:
        return STORAGE
    if "range of cpus" in lowered:  # more than the machine has: all of them, then
        return CPUS
    return None
