"""Labels on everything we create, and removal of what dead owners left.

Images are not swept: they are a cache, named ``pytest-harbor/...``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

import docker

from pytest_harbor.sandboxes.api import TASK_LABEL, Swept
from pytest_harbor.sandboxes.docker.client import NOT_FOUND, DaemonError, daemon_errors
from pytest_harbor.sandboxes.owner import Owner

SESSION_LABEL: Final = "pytest-harbor.session"
OWNER_LABEL: Final = "pytest-harbor.owner"

KEPT_SUFFIX: Final = "-kept"
"""Ends the name of a container that a person asked to keep; labels cannot change."""

_REMOVAL_UNDER_WAY = 409


def all_labels(labels: Mapping[str, str], session: str) -> dict[str, str]:
    """``labels`` with the session (unless given) and this process as the owner."""
    return {SESSION_LABEL: session, **labels, OWNER_LABEL: str(Owner.current())}


def sweep(client: docker.APIClient) -> Swept:
    """Remove containers, networks and volumes of owners that are dead."""
    filters = {"label": [OWNER_LABEL]}
    removed: list[str] = []
    kept: list[str] = []
    for container in client.containers(all=True, filters=filters):
        labels = container.get("Labels")
        name = str((container["Names"] or [container["Id"]])[0]).lstrip("/")
        if name.endswith(KEPT_SUFFIX):
            kept.append(f"container {name}: docker rm -f -v {name}")
        elif _is_orphan(labels) and remove_container(client, container["Id"]):
            removed.append(f"container {name}{_of_task(labels)}")
    for network in client.networks(filters=filters):
        if _is_orphan(network.get("Labels")):
            with contextlib.suppress(DaemonError), daemon_errors():
                client.remove_network(network["Id"])
                removed.append(f"network {network['Name']}")
    for volume in client.volumes(filters=filters)["Volumes"] or ():
        if _is_orphan(volume.get("Labels")):
            with contextlib.suppress(DaemonError), daemon_errors():
                client.remove_volume(volume["Name"])
                removed.append(f"volume {volume['Name']}")
    return Swept(tuple(removed), tuple(kept))


def remove_container(client: docker.APIClient, container: str) -> bool:
    """Kill and remove at once, with its anonymous volumes; False if it was gone.

    Never ``stop``: the container's own command has nothing to say in its last ten
    seconds. Raises DaemonError.
    """
    try:
        with daemon_errors():
            client.remove_container(container, force=True, v=True)
    except DaemonError as error:
        if error.status in (NOT_FOUND, _REMOVAL_UNDER_WAY):
            return False
        raise
    return True


def _of_task(labels: Mapping[str, str] | None) -> str:
    task = (labels or {}).get(TASK_LABEL)
    return f" of task {task}" if task else ""


def _is_orphan(labels: Mapping[str, str] | None) -> bool:
    owner = Owner.parse((labels or {}).get(OWNER_LABEL, ""))
    return owner is not None and owner.is_dead
