"""What belongs to a Compose project, found by its label: state, log, removal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import docker

from pytest_harbor.sandboxes.docker.client import NOT_FOUND, DaemonError, Engine
from pytest_harbor.sandboxes.docker.sweep import PROJECT_LABEL, remove_container
from pytest_harbor.tasks.folder.model import MAIN_SERVICE

SERVICE_LABEL: Final = "com.docker.compose.service"
NUMBER_LABEL: Final = "com.docker.compose.container-number"

_LOG_LINES = 15
_REMOVALS_AT_ONCE = 4
_SETTLE_SECONDS = 0.5
_SETTLE_LIMIT_SECONDS = 30.0
_QUIET_LOOKS = 2
"""So often in a row must nothing be there after an interrupted start."""


@dataclass(frozen=True)
class Container:
    """A container of a project."""

    id: str
    name: str
    service: str
    number: int


def containers(client: docker.APIClient, project: str) -> list[Container]:
    """All containers of a project, the first of each service first."""
    found = client.containers(all=True, filters=_filters(project))
    listed = [
        Container(
            id=str(item["Id"]),
            name=str(item["Names"][0]).removeprefix("/"),
            service=str(item["Labels"].get(SERVICE_LABEL, "")),
            number=int(item["Labels"].get(NUMBER_LABEL, "1")),
        )
        for item in found
    ]
    return sorted(listed, key=lambda container: (container.number, container.service))


def why_not_up(client: docker.APIClient, project: str) -> str:
    """Which service keeps a project from being up, and what it said last; or nothing.

    Raises:
        DaemonError: the daemon refused, or does not answer.
    """
    candidates: list[tuple[int, Container, str]] = []
    for container in containers(client, project):
        try:
            state = client.inspect_container(container.id)["State"]
        except docker.errors.NotFound:
            continue
        for rank, text in faults(state):
            candidates.append((rank, container, text))
    if not candidates:
        return ""
    _, container, text = min(candidates, key=lambda candidate: candidate[0])
    log = bytes(client.logs(container.id, tail=_LOG_LINES)).decode(errors="replace")
    lines = [f"service '{container.service}' {text}"]
    return "\n".join([*lines, *log.rstrip().splitlines()])


def faults(state: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """What is wrong with a container, the likelier cause with the smaller number."""
    code, status = state.get("ExitCode", 0), state.get("Status")
    if status == "created" and state.get("Error"):
        yield 0, f"did not start: {state['Error']}"
    elif status in ("exited", "dead", "restarting"):
        how = f"ended with exit code {code}"
        if state.get("OOMKilled"):
            how = f"ran out of memory (exit code {code})"
        if code:
            yield 0, how
        else:
            yield 3, f"{how}, and nothing depends on its end"
    health = state.get("Health") or {}
    if status == "running" and health.get("Status") in ("unhealthy", "starting"):
        checks = health.get("Log") or [{}]
        last = " ".join(str(checks[-1].get("Output", "")).split())
        said = f" (its last check said: {last})" if last else ""
        is_unhealthy = health["Status"] == "unhealthy"
        how = "is unhealthy" if is_unhealthy else "is not healthy yet"
        yield (1 if is_unhealthy else 2), how + said


def remove(engine: Engine, project: str, *, settle: bool = False) -> None:
    """Remove a project with its containers, networks and volumes, whatever state it is in.

    ``settle``: Compose was interrupted, and what it asked the daemon for last may still
    come to be; look until nothing new appears.

    Raises:
        DaemonError: something cannot be removed; as much as can be was.
    """
    deadline = time.monotonic() + _SETTLE_LIMIT_SECONDS
    quiet = 0
    while True:
        found, failure = _remove_what_is_there(engine, project)
        quiet = 0 if found else quiet + 1
        is_over = not settle or quiet == _QUIET_LOOKS or time.monotonic() > deadline
        if is_over and failure is not None:
            raise failure
        if is_over:
            return
        time.sleep(_SETTLE_SECONDS)


def _remove_what_is_there(
    engine: Engine, project: str
) -> tuple[bool, DaemonError | None]:
    """True when there was anything, and why something of it is still there."""
    listed = engine.run(lambda client: containers(client, project))
    # One after the other, they would cost as much as all of them at once each.
    with ThreadPoolExecutor(_REMOVALS_AT_ONCE) as threads:
        failures = list(threads.map(lambda item: _removed(engine, item.id), listed))
    networks, volumes = engine.run(lambda client: _rest(client, project))
    works = [partial(_remove_network, network) for network in networks]
    works += [partial(_remove_volume, volume) for volume in volumes]
    failures += [_attempt(engine, work) for work in works]
    failed = next((failure for failure in failures if failure is not None), None)
    return bool(listed or networks or volumes), failed


def _removed(engine: Engine, container: str) -> DaemonError | None:
    return _attempt(engine, lambda client: remove_container(client, container))


def _rest(
    client: docker.APIClient, project: str
) -> tuple[Sequence[str], Sequence[str]]:
    networks = client.networks(filters=_filters(project))
    volumes = client.volumes(filters=_filters(project)).get("Volumes") or ()
    return [item["Id"] for item in networks], [item["Name"] for item in volumes]


def _attempt(
    engine: Engine, work: Callable[[docker.APIClient], object]
) -> DaemonError | None:
    try:
        engine.run(work)
    except DaemonError as error:
        return None if error.status == NOT_FOUND else error
    return None


def _remove_network(network: str, client: docker.APIClient) -> None:
    client.remove_network(network)


def _remove_volume(volume: str, client: docker.APIClient) -> None:
    client.remove_volume(volume, force=True)


def _filters(project: str) -> dict[str, list[str]]:
    return {"label": [f"{PROJECT_LABEL}={project}"]}


def first_of_each(listed: Sequence[Container]) -> Mapping[str, Container]:
    """One container per service, ``main`` among them."""
    firsts: dict[str, Container] = {}
    for container in listed:
        firsts.setdefault(container.service, container)
    if MAIN_SERVICE not in firsts:
        raise DaemonError("Compose did not start the service 'main'", 500)
    return firsts
