"""From a task's Compose file to the one that is brought up: pure.

Compose reads the file first and answers with everything filled in; what is made of that
answer here is all that Compose gets to see afterwards, so what was checked is what runs.
Every episode's project is its own: names, labels, networks and volumes are given here, host
ports are not opened, and files of the task are mounted read-only.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pytest_harbor.sandboxes.docker.compose_checks import REPLACED
from pytest_harbor.sandboxes.docker.create import CPUS, STORAGE
from pytest_harbor.sandboxes.docker.images import Image
from pytest_harbor.sandboxes.docker.scripts import KEEP_ALIVE, MARKER, SHELL
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Limits
from pytest_harbor.tasks.folder.artifact_paths import ARTIFACTS_FOLDER
from pytest_harbor.tasks.folder.model import MAIN_SERVICE

Model = dict[str, Any]

MAIN_IMAGE: Final = "pytest-harbor.invalid/main-image"
"""Stands for the task's own image until it is known which that is."""

PROJECT: Final = "pytest-harbor-project"
"""Stands for the project's name, so that a file is read once for all its episodes."""

SHARED_LOGS: Final = "pytest-harbor-artifacts"
OTHER_LOGS: Final = ("pytest-harbor-verifier-logs", "pytest-harbor-agent-logs")
"""Volumes that stand for the log folders which Harbor mounts from the host."""

_SLEEPERS: Final = ("sleep infinity", "sleep inf", "tail -f /dev/null")
_LOG_FOLDERS: Final = ("/logs", "/logs/verifier", "/logs/agent")
_LEGACY_LIMITS: Final = ("cpus", "mem_limit", "pids_limit")


def known_variables(spec: EnvironmentSpec, folder: str) -> Mapping[str, str]:
    """The variables that Harbor gives to a Compose file, whatever the task says."""
    limits = spec.limits
    return {
        "MAIN_IMAGE_NAME": MAIN_IMAGE,
        "PREBUILT_IMAGE_NAME": MAIN_IMAGE,
        "CONTEXT_DIR": folder,
        "TEST_DIR": "/tests",
        "CPUS": f"{1 if limits.cpus is None else limits.cpus:g}",
        "MEMORY": f"{limits.memory_mib or 1024}M",
        "NETWORK_MODE": "none" if spec.network == "no-network" else "bridge",
        "HOST_ARTIFACTS_PATH": SHARED_LOGS,
        "HOST_VERIFIER_LOGS_PATH": OTHER_LOGS[0],
        "HOST_AGENT_LOGS_PATH": OTHER_LOGS[1],
        "ENV_ARTIFACTS_PATH": ARTIFACTS_FOLDER,
        "ENV_VERIFIER_LOGS_PATH": "/logs/verifier",
        "ENV_AGENT_LOGS_PATH": "/logs/agent",
    }


def base_file(spec: EnvironmentSpec) -> Model:
    """What the task's file is laid over, as Harbor lays it over one of its own.

    ``main`` is the task's image even where the file does not speak of it.
    """
    main: Model = {"image": MAIN_IMAGE}
    if spec.build_context is not None:
        main["build"] = {"context": str(spec.build_context)}
    return {
        "services": {MAIN_SERVICE: main},
        "volumes": {name: {} for name in (SHARED_LOGS, *OTHER_LOGS)},
    }


def with_name(model: Mapping[str, Any], standing_for: str, name: str) -> Model:
    """``model`` with a name in the place of what stood for it, wherever that is."""
    quoted = json.dumps(name)[1:-1]
    replaced: Model = json.loads(json.dumps(model).replace(standing_for, quoted))
    return replaced


@dataclass(frozen=True)
class ProjectPlan:
    """What is decided about a project beside its file."""

    name: str
    spec: EnvironmentSpec
    images: Mapping[str, Image]
    """One per service."""
    workdir: str
    """Working directory of ``main``."""
    labels: Mapping[str, str]
    pids_limit: int
    no_new_privileges: bool = True


def runnable(
    model: Mapping[str, Any], plan: ProjectPlan, *, without: Collection[str] = ()
) -> Model:
    """The file that is brought up, ``without`` limits that the daemon cannot set."""
    result: Model = {"name": plan.name}
    result["services"] = {
        name: _service(name, copy.deepcopy(service), model, plan, without)
        for name, service in model["services"].items()
    }
    used = set(_used_volumes(result["services"].values()))
    result["networks"] = {
        name: _network(name, network or {}, plan)
        for name, network in (model.get("networks") or {}).items()
    }
    result["volumes"] = {
        name: _owned(name, {"driver_opts": (volume or {}).get("driver_opts")}, plan)
        for name, volume in (model.get("volumes") or {}).items()
        if name in used
    }
    for key in ("configs", "secrets"):
        if model.get(key):
            result[key] = {
                name: {k: v for k, v in item.items() if k != "name"}
                for name, item in model[key].items()
            }
    return result


def _service(
    name: str,
    service: Model,
    model: Mapping[str, Any],
    plan: ProjectPlan,
    without: Collection[str],
) -> Model:
    aliases = [service["container_name"]] if service.get("container_name") else []
    for key in (*REPLACED, "build"):
        service.pop(key, None)
    service["image"] = plan.images[name].name
    service["security_opt"] = [
        option
        for option in service.get("security_opt") or ()
        if option.startswith("no-new-privileges")
    ]
    service["labels"] = {**(service.get("labels") or {}), **_escaped(plan.labels)}
    service["volumes"] = [_read_only(mount) for mount in service["volumes"]]
    if service.get("networks") is not None and aliases:
        service["networks"] = {
            network: _with_aliases(attachment or {}, aliases)
            for network, attachment in service["networks"].items()
        }
    limits = _size(service)
    if name == MAIN_SERVICE:
        limits = _laid_over(plan.spec.limits, limits)
        _make_main(service, model, plan)
    _set_limits(service, limits, plan, without)
    if plan.spec.network == "no-network":
        _close(service)
    return service


def _make_main(service: Model, model: Mapping[str, Any], plan: ProjectPlan) -> None:
    """Turn ``main`` into the agent's sandbox: it lives until it is removed."""
    image, spec = plan.images[MAIN_SERVICE], plan.spec
    own = _own_command(service, image)
    for key in ("restart", "stop_signal", "stop_grace_period", "stdin_open", "tty"):
        service.pop(key, None)
    (service.get("deploy") or {}).pop("restart_policy", None)
    service["init"] = True
    service["entrypoint"] = [SHELL]
    service["command"] = ["-c", KEEP_ALIVE.replace("$", "$$")]
    if own:
        service["command"] = ["-c", f'"$$@" & {KEEP_ALIVE}', SHELL, *own]
    # Root, so that an agent with another user cannot end the sandbox; but what the
    # author wants to run there runs as the author says.
    if not (own and service.get("user")):
        service["user"] = "0"
    service["working_dir"] = plan.workdir
    service["environment"] = {
        **(service.get("environment") or {}),
        **_escaped(spec.env),
        MARKER: MAIN_SERVICE,
    }
    if plan.no_new_privileges:
        service["security_opt"] = ["no-new-privileges"]
    if service.get("cap_drop"):
        # Without these, root could neither end the agent's processes nor switch users.
        added = [*(service.get("cap_add") or ()), "CHOWN", "KILL"]
        service["cap_add"] = list(dict.fromkeys(added))
    if "healthcheck" not in service and not _is_waited_for(model):
        # A check of the image that nobody waits for, of a program that does not run.
        service["healthcheck"] = {"disable": True}


def _own_command(service: Mapping[str, Any], image: Image) -> list[str]:
    """What the file has ``main`` run, unless that only keeps it alive.

    The image's own entry point counts only where the file gives it a command.
    """
    command = [str(word) for word in service.get("command") or ()]
    entrypoint = [str(word) for word in service.get("entrypoint") or ()]
    own = [*(entrypoint or (image.entrypoint if command else ())), *command]
    last = own[-1].strip() if own else ""
    if " ".join(own) in _SLEEPERS or (len(own) == 3 and last in _SLEEPERS):
        return []
    return own


def _is_waited_for(model: Mapping[str, Any]) -> bool:
    """True when a service starts only once ``main`` is healthy."""
    return any(
        (service.get("depends_on") or {}).get(MAIN_SERVICE, {}).get("condition")
        == "service_healthy"
        for service in model["services"].values()
    )


def with_log_volumes(model: Mapping[str, Any]) -> Model:
    """``model`` without what Harbor mounts from the host for logs.

    Those of ``main`` travel through the API. Where a sidecar writes into the
    ``/logs/artifacts`` of ``main``, both share a volume.
    """
    result: Model = copy.deepcopy(dict(model))
    services = result["services"]
    for name, service in services.items():
        mounts = [_volume_for_logs(mount) for mount in service.get("volumes") or ()]
        if name == MAIN_SERVICE:
            mounts = [mount for mount in mounts if not _is_for_logs(mount)]
        service["volumes"] = mounts
    main = services[MAIN_SERVICE]["volumes"]
    has_own = any(mount.get("target") == ARTIFACTS_FOLDER for mount in main)
    if not has_own and any(
        mount.get("source") == SHARED_LOGS
        for service in services.values()
        for mount in service["volumes"]
    ):
        main.append(_shared(ARTIFACTS_FOLDER))
        result.setdefault("volumes", {}).setdefault(SHARED_LOGS, {})
    return result


def _volume_for_logs(mount: Model) -> Model:
    """``mount``, with the volume that stands for a folder of the host, if one does.

    In the long form Compose takes the volume's name for a path.
    """
    name = str(mount.get("source", "")).rpartition("/")[2]
    if name not in (SHARED_LOGS, *OTHER_LOGS):
        return mount
    return {**_shared(mount["target"]), "source": name}


def _shared(target: str) -> Model:
    return {"type": "volume", "source": SHARED_LOGS, "target": target}


def _is_for_logs(mount: Model) -> bool:
    target = str(mount.get("target", "")).rstrip("/")
    if target == ARTIFACTS_FOLDER:
        return mount.get("type") == "bind" or mount.get("source") == SHARED_LOGS
    return target in _LOG_FOLDERS


def _read_only(mount: Model) -> Model:
    """Written to, a task's file would be another task's for every later episode."""
    return {**mount, "read_only": True} if mount.get("type") == "bind" else mount


def _used_volumes(services: Iterable[Model]) -> Iterator[str]:
    for service in services:
        for mount in service.get("volumes") or ():
            if mount.get("type") == "volume" and mount.get("source"):
                yield mount["source"]


def _size(service: Mapping[str, Any]) -> Limits:
    """The size of a service: limits, else reservations, else the legacy keys (spec 18)."""
    resources = (service.get("deploy") or {}).get("resources") or {}
    parts = [resources.get("limits") or {}, resources.get("reservations") or {}]
    parts.append({"cpus": service.get("cpus"), "memory": service.get("mem_limit")})
    cpus = next((float(p["cpus"]) for p in parts if p.get("cpus")), None)
    memory = next((int(p["memory"]) for p in parts if p.get("memory")), None)
    return Limits(cpus, None if memory is None else math.ceil(memory / 1024**2))


def _laid_over(upper: Limits, lower: Limits) -> Limits:
    return Limits(
        lower.cpus if upper.cpus is None else upper.cpus,
        lower.memory_mib if upper.memory_mib is None else upper.memory_mib,
        upper.storage_mib,
    )


def _set_limits(
    service: Model, limits: Limits, plan: ProjectPlan, without: Collection[str]
) -> None:
    """Make ``limits`` the service's only ones."""
    deploy = dict(service.get("deploy") or {})
    known = (deploy.get("resources") or {}).get("limits") or {}
    pids = service.get("pids_limit") or known.get("pids") or plan.pids_limit
    values: Model = {"pids": pids}
    if limits.cpus is not None and CPUS not in without:
        values["cpus"] = limits.cpus
    if limits.memory_mib is not None:
        memory = str(limits.memory_mib * 1024**2)
        values["memory"] = memory
        service["memswap_limit"] = memory  # no more by way of swapping
    if limits.storage_mib is not None and STORAGE not in without:
        service["storage_opt"] = {"size": f"{limits.storage_mib}M"}
    for key in _LEGACY_LIMITS:
        service.pop(key, None)
    service["deploy"] = {**deploy, "resources": {"limits": values}}


def _close(service: Model) -> None:
    """Leave a service without a way out, name servers included."""
    service["dns"] = ["127.0.0.1"]
    service.pop("dns_search", None)
    if service.get("network_mode") == "bridge":
        service["network_mode"] = "none"


def _network(name: str, network: Mapping[str, Any], plan: ProjectPlan) -> Model:
    kept = ("enable_ipv6", "internal", "ipam")
    values: Model = {key: network[key] for key in kept if network.get(key)}
    mtu = (network.get("driver_opts") or {}).get("com.docker.network.driver.mtu")
    options = {"com.docker.network.driver.mtu": mtu} if mtu else {}
    if plan.spec.network == "no-network":
        values["internal"] = True
        # An internal network reaches this machine by the bridge's address, if it has one.
        options["com.docker.network.bridge.inhibit_ipv4"] = "true"
    return _owned(name, {**values, "driver_opts": options}, plan)


def _owned(name: str, values: Mapping[str, Any], plan: ProjectPlan) -> Model:
    kept = {key: value for key, value in values.items() if value}
    return {**kept, "name": f"{plan.name}_{name}", "labels": _escaped(plan.labels)}


def _with_aliases(attachment: Mapping[str, Any], aliases: Sequence[str]) -> Model:
    known = attachment.get("aliases") or []
    return {**attachment, "aliases": list(dict.fromkeys([*known, *aliases]))}


def literal(value: str) -> str:
    """What a value of a file that Compose has read stands for."""
    return value.replace("$$", "$")


def _escaped(values: Mapping[str, str]) -> Mapping[str, str]:
    """Values that Compose must take as they are."""
    return {key: value.replace("$", "$$") for key, value in values.items()}
