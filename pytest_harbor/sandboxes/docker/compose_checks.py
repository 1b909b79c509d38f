"""What a Compose file may not ask for: a way out of the sandbox, or somebody else's things.

A task folder is untrusted, and Compose can hand a container the whole machine. So every
key is on a list: what stays inside passes, what reaches out is refused by name, and so is
what nobody here has thought about. Nothing is read but links on the disk.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from pytest_harbor.tasks.folder.model import MAIN_SERVICE

Model = Mapping[str, Any]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PASSED: Final = _words(
    """
    cap_drop command cpu_count cpu_percent cpu_period cpu_quota cpu_shares cpus cpuset
    depends_on dns dns_opt dns_search domainname entrypoint environment expose extra_hosts
    group_add healthcheck hostname image init labels links mac_address mem_limit
    mem_reservation mem_swappiness memswap_limit networks pids_limit platform restart
    scale shm_size stdin_open stop_grace_period stop_signal sysctls tmpfs tty ulimits
    user working_dir
    """
)
"""Keys of a service that cannot reach beyond its container and the project's networks."""

REPLACED: Final = _words(
    "attach container_name develop logging ports profiles pull_policy"
)
"""Keys that are harmless because the project is brought up without them."""

SAFE_CAPABILITIES: Final = _words(
    """
    AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID IPC_LOCK KILL MKNOD NET_ADMIN
    NET_BIND_SERVICE NET_RAW SETFCAP SETGID SETPCAP SETUID SYS_CHROOT SYS_NICE SYS_PTRACE
    """
)
"""Docker's own, and those that act on the container's network, memory and processes."""

RUNNER_FOLDERS: Final = ("/tests", "/solution", "/logs/verifier", "/logs/agent")
"""Folders of ``main`` that are emptied from outside, which no mount may be in the way of."""

_NAMESPACES: Final = {
    "pid": ("service:",),
    "ipc": ("service:", "shareable", "private", "none"),
    "network_mode": ("service:", "none", "bridge"),
    "uts": (),
    "userns_mode": (),
    "cgroup": ("private",),
}
"""Per key what it may be: ``host`` and other people's containers are none of it."""

_MAY_BE_REMOTE = re.compile(
    r"^[a-z+]+://|^git@|^github\.com/|\.git(#|$)", re.IGNORECASE
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))", re.IGNORECASE
)
_JOINED_LINES = re.compile(r"\\\n\s*")
_OTHER_BREAK = re.compile("\r(?!\n)|[\x85\u2028\u2029]")
"""What ends a line in YAML, and not in most editors nor for ``re``."""
_CODED = re.compile(r"!\S*(?:binary|%)|^%", re.MULTILINE)
"""Tags by which a key is written in another way than with its letters."""
_KEY = r"""(?:^|[\[{{,?:&!*|>-]\S*)[ \t]*["']?{}["']?[ \t]*(?:$|[:,}}\]#])"""
_INCLUDE = re.compile(_KEY.format("include"), re.MULTILINE)
_EXTENDS = re.compile(_KEY.format("extends"), re.MULTILINE)
_HIDDEN_KEY = re.compile(
    r"(?:^|[\s{,\[])\?(?:\s|$)|\*[^\s,\[\]{}]+\s*:|&\S+\s+[\"']?file\b", re.MULTILINE
)
"""Ways to write a key that cannot be told from a value without reading YAML."""
_FILE = re.compile(r"""(?<![\w-])["']?file["']?[ \t]*:""")
_QUOTED = re.compile(
    r"""\s*(?P<quote>["'])(?P<name>[\w./-]+)(?P=quote)[ \t]*(?:[,}#\n]|$)"""
)
_IN_BRACES = re.compile(r"[ \t]+(?P<name>[\w./-]+)[ \t]*[,}]")
_IN_A_BLOCK = re.compile(
    r"""[ ]+(?P<name>[\w./-]+)[ ]*(?:[ ]\#.*)?
        (?:\n[ ]*(?:\#.*)?)*  # then nothing, or a key that is no deeper
        (?:\Z|\n(?P<indent>[ ]*)["']?[\w.-]+["']?[ ]*:(?:\s|\Z))""",
    re.VERBOSE,
)

_BUILD_PASSED = _words(
    """
    args context dockerfile dockerfile_inline labels no_cache platforms pull shm_size
    tags target
    """
)
_DEPLOY_PASSED = _words("labels mode placement replicas resources restart_policy")


def unreadable(path: Path) -> Iterator[str]:
    """Why Compose must not even read a file: it could bring in files of this machine."""
    root = path.parent
    for own in (path, root / ".env"):
        if own.exists() and not is_inside(own, root):
            yield f"{own.name}: is a link out of {root.name}/; copy the file"
    yield from _brought_in(path, root, set())


def _brought_in(path: Path, root: Path, seen: set[Path]) -> Iterator[str]:
    """Other files that Compose would read at once, unless they are the task's own."""
    seen.add(path.resolve())
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        yield f"{path.name}: is not UTF-8"
        return
    if _OTHER_BREAK.search(text):
        yield f"{path.name}: has line breaks that hide keys; end lines with a newline"
        return
    text = _without_escapes(text.replace("\r\n", "\n"))
    keys = _JOINED_LINES.sub("", text)
    if _CODED.search(text):
        yield f"{path.name}: !!binary and % in tags hide keys; write them plainly"
    if _INCLUDE.search(keys):
        yield (
            f"{path.name}: include: files of this machine could be read; write the"
            " services into this file"
        )
    if not _EXTENDS.search(keys):
        return
    if _HIDDEN_KEY.search(keys):
        yield f"{path.name}: extends: write the keys of this file plainly"
    for match in _FILE.finditer(text):
        name = _plain_value(text, match)
        if name is None:
            said = text[match.end() :].lstrip(" ").partition("\n")[0]
            yield f"{path.name}: extends: write the path {said or 'of a file'} in quotes"
            continue
        other = path.parent / name
        if not (is_inside(other, root) and other.is_file()):
            yield f"{path.name}: extends: {name} is not in {root.name}/"
        elif other.resolve() not in seen:
            yield from _brought_in(other, root, seen)


def _plain_value(text: str, key: re.Match[str]) -> str | None:
    """The value after a key, ``None`` where it may be longer than it looks.

    A value without quotes may hold commas and braces, and go on in later lines.
    """
    if match := _QUOTED.match(text, key.end()):
        return match["name"]
    before = text[: key.start()].rpartition("\n")[2]
    if before.rstrip(" ").endswith(("{", ",")):
        match = _IN_BRACES.match(text, key.end())
        return match and match["name"]
    match = _IN_A_BLOCK.match(text, key.end())
    if match is None or before.strip(" ") or len(match["indent"] or "") > len(before):
        return None
    return match["name"]


def _without_escapes(text: str) -> str:
    """``text`` with its letters as such; of another character none is made up."""

    def letter(match: re.Match[str]) -> str:
        number = int(match[1] or match[2] or match[3], 16)
        is_letter = number <= 0x10FFFF and chr(number).isalpha()
        return chr(number) if is_letter else match[0]

    return _ESCAPE.sub(letter, text)


def problems(model: Model, root: Path) -> list[str]:
    """Every reason to refuse a project, ``model`` being how Compose reads its file.

    ``root`` is ``environment/``, which no file may be outside of. ``model`` still names
    its ``env_file`` entries.
    """
    found = [*_top_level(model, root)]
    for name, service in model.get("services", {}).items():
        found += [f"service '{name}': {text}" for text in _service(name, service, root)]
    return found


def is_inside(path: str | Path, root: Path) -> bool:
    """True when ``path``, links followed, is ``root`` or below it."""
    return Path(path).resolve().is_relative_to(root.resolve())


def _service(name: str, service: Model, root: Path) -> Iterator[str]:
    for key, value in service.items():
        if _is_unset(value) or key in PASSED or key in REPLACED or key.startswith("x-"):
            continue
        if key in _NAMESPACES:
            if not str(value).startswith(_NAMESPACES[key]):
                yield f"{key}: {value!r} is not the sandbox's own"
        elif key in _CHECKS:
            yield from _CHECKS[key](value, root)
        elif key in _REASONS:
            yield f"{key}: {_REASONS[key]}"
        else:
            yield f"{key}: is not supported"
    if name == MAIN_SERVICE:
        yield from _main(service)


def _main(service: Model) -> Iterator[str]:
    """What only the agent's own sandbox cannot have."""
    if service.get("read_only"):
        yield "read_only: files could not be brought in"
    if service.get("scale", 1) != 1 or _deploy(service).get("replicas", 1) != 1:
        yield "scale: there is one agent's sandbox"
    for key in ("volumes", "configs", "secrets", "tmpfs"):
        for mount in service.get(key) or ():
            place = mount.get("target") if isinstance(mount, Mapping) else mount
            if not str(place or "").startswith("/"):
                continue  # of a secret: its name in a folder of its own
            target = posixpath.normpath(f"/{str(place).partition(':')[0].lstrip('/')}")
            if any(_overlap(target, folder) for folder in RUNNER_FOLDERS):
                yield f"{key}: {target} belongs to the runner; mount another folder"


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _deploy(service: Model) -> Model:
    deploy: Model = service.get("deploy") or {}
    return deploy


def _volumes(mounts: Sequence[Model], root: Path) -> Iterator[str]:
    for mount in mounts:
        kind, source = mount.get("type"), str(mount.get("source", ""))
        if kind == "bind":
            yield from _path(
                "volumes", source, root, "mount files of environment/ only"
            )
        elif kind not in ("volume", "tmpfs"):
            yield f"volumes: type {kind!r} is not supported"


def _path(key: str, path: str, root: Path, remedy: str) -> Iterator[str]:
    if not is_inside(path, root):
        yield f"{key}: {path} is outside of environment/; {remedy}"
    elif not Path(path).exists():
        yield f"{key}: {path} does not exist"


def _capabilities(values: Sequence[str], _: Path) -> Iterator[str]:
    for value in values:
        if value.upper().removeprefix("CAP_") not in SAFE_CAPABILITIES:
            yield f"cap_add: {value} reaches beyond the container"


def _security(values: Sequence[str], _: Path) -> Iterator[str]:
    for value in values:
        # A label of SELinux is left out: the daemon gives each container its own.
        if not str(value).startswith(("no-new-privileges", "label")):
            yield f"security_opt: {value!r} takes a part of the container's wall away"


def _files(key: str, entries: Sequence[Any], root: Path) -> Iterator[str]:
    for entry in entries:
        path = str(entry["path"] if isinstance(entry, Mapping) else entry)
        if not is_inside(path, root):
            yield f"{key}: {path} is outside of environment/; copy it there"


def _hooks(hooks: Sequence[Model], _: Path) -> Iterator[str]:
    if any(hook.get("privileged") for hook in hooks):
        yield "post_start, pre_stop: privileged gives the command the whole machine"


def _runtime(value: str, _: Path) -> Iterator[str]:
    if value != "runc":
        yield f"runtime: {value!r} is not supported"


def _build(build: Model, root: Path) -> Iterator[str]:
    context = str(build.get("context", ""))
    if _MAY_BE_REMOTE.search(context):
        yield f"build.context: {context} is not in environment/; copy it there"
    elif not is_inside(context, root):
        yield from _path("build.context", context, root, "copy what it needs there")
    elif "dockerfile_inline" not in build:
        dockerfile = Path(context, str(build.get("dockerfile", "Dockerfile")))
        yield from _path("build.dockerfile", str(dockerfile), root, "copy it there")
    for key, value in build.items():
        if key not in _BUILD_PASSED and not _is_unset(value):
            yield f"build.{key}: is not supported"


def _deployment(deploy: Model, _: Path) -> Iterator[str]:
    for key, value in deploy.items():
        if key not in _DEPLOY_PASSED and not _is_unset(value):
            yield f"deploy.{key}: is not supported"
    resources = deploy.get("resources") or {}
    for part in ("limits", "reservations"):
        asked = resources.get(part) or {}
        if asked.get("devices") or asked.get("generic_resources"):
            yield f"deploy.resources.{part}.devices: there are no GPUs or other devices"


def _top_level(model: Model, root: Path) -> Iterator[str]:
    for name, network in (model.get("networks") or {}).items():
        yield from _network(f"network '{name}'", network or {})
    for name, volume in (model.get("volumes") or {}).items():
        yield from _volume(f"volume '{name}'", volume or {})
    for key in ("configs", "secrets"):
        for name, item in (model.get(key) or {}).items():
            where = f"{key.removesuffix('s')} '{name}'"
            if item.get("external") or item.get("driver"):
                yield f"{where}: external: is not supported"
            if item.get("environment"):
                yield f"{where}: environment: give the service the variable itself"
            if "file" in item:
                paths = _path("file", str(item["file"]), root, "copy it there")
                yield from (f"{where}: {text}" for text in paths)
    if model.get("models"):
        yield "models: is not supported"


def _network(where: str, network: Model) -> Iterator[str]:
    if network.get("external"):
        yield f"{where}: external: belongs to others; leave it out, each episode has its own"
    if network.get("driver") not in (None, "bridge"):
        yield f"{where}: driver: {network['driver']!r} is not supported"


def _volume(where: str, volume: Model) -> Iterator[str]:
    if volume.get("external"):
        yield f"{where}: external: belongs to others; each episode has its own"
    if volume.get("driver") not in (None, "local"):
        yield f"{where}: driver: {volume['driver']!r} is not supported"
    options = volume.get("driver_opts") or {}
    if options and (options.get("type"), options.get("device")) != ("tmpfs", "tmpfs"):
        yield f"{where}: driver_opts: would mount something of this machine"


def _is_unset(value: object) -> bool:
    return value is None or value is False or value in ("", [], {})


_REASONS: Final = {
    "annotations": "they are orders to the container runtime",
    "cgroup_parent": "its limits would not be the sandbox's own",
    "device_cgroup_rules": "devices of this machine are not for a sandbox",
    "devices": "devices of this machine are not for a sandbox",
    "external_links": "they lead to other people's containers",
    "gpus": "there are no GPUs",
    "privileged": "it gives the container the whole machine",
    "provider": "it runs a program on this machine",
    "use_api_socket": "whoever has Docker's socket has the whole machine",
    "volumes_from": "use a named volume in both services",
}

_CHECKS: Final[Mapping[str, Callable[[Any, Path], Iterator[str]]]] = {
    "build": _build,
    "cap_add": _capabilities,
    "configs": lambda _value, _root: iter(()),
    "deploy": _deployment,
    "env_file": partial(_files, "env_file"),
    "label_file": partial(_files, "label_file"),
    "post_start": _hooks,
    "pre_stop": _hooks,
    "read_only": lambda _value, _root: iter(()),
    "runtime": _runtime,
    "secrets": lambda _value, _root: iter(()),
    "security_opt": _security,
    "storage_opt": lambda _value, _root: iter(()),
    "volumes": _volumes,
}
