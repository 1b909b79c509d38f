"""Labels on everything we create, and removal of what dead owners left.

Images are not swept: they are a cache, named ``pytest-harbor/...``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import docker

from pytest_harbor.sandboxes.api import TASK_LABEL, Swept
from pytest_harbor.sandboxes.docker.client import NOT_FOUND, DaemonError, daemon_errors
from pytest_harbor.sandboxes.owner import Owner

SESSION_LABEL: Final = "pytest-harbor.session"
OWNER_LABEL: Final = "pytest-harbor.owner"

KEPT_SUFFIX: Final = "-kept"
"""Ends the name of a container that a person asked to keep; labels cannot change."""

PROJECT_LABEL: Final = "com.docker.compose.project"
"""Compose's own; a project is kept as a whole."""

COMPANION_LABEL: Final = "pytest-harbor.beside"
"""On what serves one container alone: that container's name. Both are kept, or neither."""

_REMOVAL_UNDER_WAY = 409


def all_labels(labels: Mapping[str, str], session: str) -> dict[str, str]:
    """``labels`` with the session (unless given) and this process as the owner."""
    return {SESSION_LABEL: session, **labels, OWNER_LABEL: str(Owner.current())}


def sweep(client: docker.APIClient) -> Swept:
    """Remove containers, networks and volumes of owners that are dead."""
    filters = {"label": [OWNER_LABEL]}
    removed: list[str] = []
    kept: list[str] = []
    containers = client.containers(all=True, filters=filters)
    networks = client.networks(filters=filters)
    kept_projects = {
        _project(item) for item in containers if _name(item).endswith(KEPT_SUFFIX)
    } - {""}
    kept_names = {
        _name(item).removesuffix(KEPT_SUFFIX)
        for item in containers
        if _name(item).endswith(KEPT_SUFFIX)
    }

    def is_left(item: Mapping[str, Any]) -> bool:
        if _project(item) in kept_projects or _beside(item) in kept_names:
            return False
        return _is_orphan(item.get("Labels"))

    for container in containers:
        name = _name(container)
        if name.endswith(KEPT_SUFFIX):
            kept.append(f"container {name}: {_way(container, containers, networks)}")
        elif is_left(container) and remove_container(client, container["Id"]):
            removed.append(f"container {name}{_of_task(container.get('Labels'))}")
    for network in networks:
        if is_left(network):
            with contextlib.suppress(DaemonError), daemon_errors():
                client.remove_network(network["Id"])
                removed.append(f"network {network['Name']}")
    for volume in client.volumes(filters=filters)["Volumes"] or ():
        if is_left(volume):
            with contextlib.suppress(DaemonError), daemon_errors():
                client.remove_volume(volume["Name"])
                removed.append(f"volume {volume['Name']}")
    return Swept(tuple(removed), tuple(kept))


def _way(
    container: Mapping[str, Any],
    containers: Sequence[Mapping[str, Any]],
    networks: Sequence[Mapping[str, Any]],
) -> str:
    """The command that removes what a person asked to keep."""
    if project := _project(container):
        return f"docker compose -p {project} down -t 0 -v"
    name = _name(container)
    plain = name.removesuffix(KEPT_SUFFIX)
    names = [name, *(_name(item) for item in containers if _beside(item) == plain)]
    way = f"docker rm -f -v {' '.join(names)}"
    beside = [str(item["Name"]) for item in networks if _beside(item) == plain]
    return f"{way}; docker network rm {' '.join(beside)}" if beside else way


def _name(container: Mapping[str, Any]) -> str:
    return str((container["Names"] or [container["Id"]])[0]).lstrip("/")


def _project(item: Mapping[str, Any]) -> str:
    return str((item.get("Labels") or {}).get(PROJECT_LABEL, ""))


def _beside(item: Mapping[str, Any]) -> str:
    return str((item.get("Labels") or {}).get(COMPANION_LABEL, ""))


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
