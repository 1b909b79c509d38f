"""What a sandbox sees of the host: bubblewrap's arguments, as a pure function."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from pytest_harbor.sandboxes.api import VERIFIER_TOOLS
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.broker import kernel
from pytest_harbor.sandboxes.local.broker.main import HOLDER, READY
from pytest_harbor.sandboxes.local.stack import Stack

SHARED_FOLDERS: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
)
"""Folders of the host that sandboxes see, copy-on-write. Nothing else of it."""

DEFAULT_WORKDIR: Final = "/app"
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_ROOM_MIB: Final = 8192
FRESH_FOLDERS: Final = (
    ("/home", "0755"),
    ("/root", "0711"),  # passable: an interpreter's prefix may lie below
    ("/run", "0755"),
    ("/run/lock", "1777"),
    ("/srv", "0755"),
    ("/mnt", "0755"),
    ("/media", "0755"),
    ("/tmp", "1777"),  # noqa: S108
    ("/var", "0755"),
    ("/var/cache", "0755"),
    ("/var/lib", "0755"),
    ("/var/log", "0755"),
    ("/var/spool", "0755"),
    ("/var/tmp", "1777"),  # noqa: S108
    ("/logs", "0755"),
    ("/logs/agent", "0777"),
    ("/logs/verifier", "0777"),
    ("/logs/artifacts", "0777"),
)
FRESH_LINKS: Final = (("/var/run", "/run"), ("/var/lock", "/run/lock"))
# uid 0 passes the file modes of /proc/sys, and bubblewrap only covers what access(2)
# says is writable; a read-only mount is what keeps the host's kernel settings safe.
_READ_ONLY_PROC: Final = ("sys", "sysrq-trigger", "irq", "bus", "fs")
_MASKED_PROC: Final = ("kcore", "keys", "timer_list", "latency_stats", "sched_debug")
# One harmless capability that no command has: the kernel then refuses ptrace of PID 1.
_UNTRACEABLE: Final = "CAP_WAKE_ALARM"
# PID 1 cannot be signalled from inside, and needs no file any more once it sleeps. With
# SIGCHLD ignored the kernel reaps for it (a shell's trap cannot do that). When nobody
# hears that it is ready, the broker has ended, and so has it.
_FIND_TOOLS: Final = (
    "trap '' TERM INT HUP; found=; for tool in "
    f"{' '.join(VERIFIER_TOOLS)}; do "
    'command -v "$tool" >/dev/null && found="$found $tool"; done; '
    f'echo "{READY}$found" && '
)
_IGNORE_CHILDREN: Final = ("env", "--ignore-signal=CHLD")
# A root file system of its own brings an env of its own.
_OTHER_HOLDER: Final = (
    f"{_FIND_TOOLS}if {' '.join(_IGNORE_CHILDREN)} true >/dev/null 2>&1; "
    f"then exec {' '.join(_IGNORE_CHILDREN)} {HOLDER} infinity >/dev/null 2>&1; fi; "
    f"exec {HOLDER} infinity >/dev/null 2>&1"
)


@dataclass(frozen=True)
class Userland:
    """What all sandboxes of a provider share."""

    bwrap: str
    etc: Path
    skeleton: Path | None
    """Folders laid over ``/usr``, for owners that a lone uid may write as."""
    rootless: bool
    prefix: Path | None
    """Prefix of the running interpreter when it lies outside the shared folders."""
    has_env_signals: bool = True
    """True when the host's ``env`` can start a program with a signal ignored."""
    hidden: tuple[Path, ...] = ()
    """Folders below the shared ones that sandboxes must not see."""
    read_only: tuple[Path, ...] = ()
    """Further folders of the host that they see, in hidden ones, too."""

    @property
    def path(self) -> str:
        """The PATH of commands."""
        return f"{SYSTEM_PATH}:{self.prefix}/bin" if self.prefix else SYSTEM_PATH


@dataclass(frozen=True)
class Bind:
    """A folder of the host that one sandbox sees beside what all see."""

    source: Path
    target: str
    is_writable: bool = False


def namespaces(*, rootless: bool, own_network: bool) -> int:
    """The namespaces of a sandbox that a command has to join."""
    flags = (
        kernel.CLONE_NEWNS
        | kernel.CLONE_NEWPID
        | kernel.CLONE_NEWIPC
        | kernel.CLONE_NEWUTS
    )
    if rootless:
        flags |= kernel.CLONE_NEWUSER
    if own_network:
        flags |= kernel.CLONE_NEWNET
    return flags


def bwrap_arguments(
    userland: Userland,
    *,
    own_network: bool,
    workdir: str,
    mounts: Collection[str],
    room_bytes: int = 0,
    binds: Sequence[Bind] = (),
    stack: Stack | None = None,
) -> list[str]:
    """The command line that starts a sandbox.

    ``mounts`` are the host's mount points; ``room_bytes`` is what the sandbox's own
    folders may hold, 0 for as much as the kernel allows. ``stack`` is an image's files.
    """
    arguments = [userland.bwrap, "--die-with-parent", "--new-session", "--as-pid-1"]
    arguments += ["--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    if own_network:
        arguments.append("--unshare-net")
    if userland.rootless:
        arguments += ["--unshare-user", "--uid", "0", "--gid", "0"]
    arguments += [
        "--hostname",
        "sandbox",
        "--clearenv",
        "--setenv",
        "PATH",
        SYSTEM_PATH,
    ]
    arguments += ["--cap-drop", "ALL", "--cap-add", _UNTRACEABLE]
    if stack is None:
        arguments += ["--size", str(room_bytes)] if room_bytes else []
        arguments += _fresh_tree(userland, mounts)
    else:
        arguments += _image_tree(userland, mounts, stack)
    if stack is None or stack.base is None:
        if userland.prefix:
            arguments += _folders(str(userland.prefix.parent))
            arguments += ["--ro-bind", str(userland.prefix), str(userland.prefix)]
        for hidden in userland.hidden:
            arguments += ["--tmpfs", str(hidden)]
    for shown in userland.read_only:
        arguments += _folders(str(shown.parent))
        arguments += ["--ro-bind", str(shown), str(shown)]
    for bind in binds:
        arguments += _folders(bind.target)
        how = "--bind" if bind.is_writable else "--ro-bind"
        arguments += [how, str(bind.source), bind.target]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    arguments += _closed_proc()
    if stack is None:  # bubblewrap would follow the links of an image out of it
        arguments += _folders(workdir)
    holder = _holder(userland) if stack is None or stack.base is None else _OTHER_HOLDER
    arguments += ["--chdir", "/", "--", "/bin/sh", "-c", holder]
    return arguments


def command_line(
    userland: Userland, spec: EnvironmentSpec, binds: Sequence[Bind]
) -> Callable[[Stack | None], list[str]]:
    """Bubblewrap's arguments for a spec, as a function of its image's files."""
    folders = (spec.files, spec.build_context)
    kept_away = [Path.cwd(), *(one.parent for one in folders if one is not None)]
    land = replace(
        userland,
        hidden=hidden_folders(kept_away, SHARED_FOLDERS),
        read_only=spec.read_only_folders,
    )
    mounts = host_mounts()

    def arguments(stack: Stack | None) -> list[str]:
        return bwrap_arguments(
            land,
            own_network=spec.network == "no-network",
            workdir=spec.workdir or DEFAULT_WORKDIR,
            mounts=mounts,
            room_bytes=room_bytes(spec.limits.storage_mib),
            binds=binds,
            stack=stack,
        )

    return arguments


def _closed_proc() -> Iterator[str]:
    for name in _READ_ONLY_PROC:
        yield from ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")
    for name in _MASKED_PROC:
        if Path("/proc", name).exists():
            yield from ("--ro-bind", "/dev/null", f"/proc/{name}")


def _fresh_tree(userland: Userland, mounts: Collection[str]) -> Iterator[str]:
    yield from ("--tmpfs", "/")
    for folder in SHARED_FOLDERS:
        yield from _shared(folder, mounts, userland.skeleton, None)
    yield from ("--overlay-src", str(userland.etc), "--tmp-overlay", "/etc")
    for folder, mode in FRESH_FOLDERS:
        yield from ("--perms", mode, "--dir", folder)
    for link, target in FRESH_LINKS:
        yield from ("--symlink", target, link)


def _image_tree(
    userland: Userland, mounts: Collection[str], stack: Stack
) -> Iterator[str]:
    yield from stack.overlay(
        "/", [stack.skeleton, *([stack.base] if stack.base else [])]
    )
    if stack.base is None:
        for folder in SHARED_FOLDERS:
            yield from _shared(folder, mounts, userland.skeleton, stack)
        yield from stack.overlay("/etc", [userland.etc])


def room_bytes(storage_mib: int | None) -> int:
    """How much a sandbox may write to folders of its own, which are memory.

    Never more than the half of the machine's that the kernel would allow each, and
    little enough by default that one that runs wild does not take all. What it
    writes over the host's folders cannot be bounded.
    """
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min((storage_mib or _ROOM_MIB) * 1024**2, half)


def _folders(path: str) -> Iterator[str]:
    """A folder and those above it, which bubblewrap alone would make for root only."""
    given = {folder for folder, _ in FRESH_FOLDERS}
    for folder in (*reversed(PurePosixPath(path).parents), PurePosixPath(path)):
        if str(folder) not in ("/", *given):
            yield from ("--perms", "0755", "--dir", str(folder))


def _holder(userland: Userland) -> str:
    ignoring = " ".join(_IGNORE_CHILDREN) if userland.has_env_signals else ""
    return f"{_FIND_TOOLS}exec {ignoring} {HOLDER} infinity >/dev/null 2>&1"


def env_ignores_signals() -> bool:
    """Whether PID 1 can be told not to collect zombies (coreutils 8.31 or newer)."""
    tried = subprocess.run(
        [*_IGNORE_CHILDREN, "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


def _shared(
    folder: str,
    mounts: Collection[str],
    skeleton: Path | None,
    stack: Stack | None,
) -> Iterator[str]:
    """Copy-on-write view of a folder.

    The kernel refuses an overlay of a tree with mounts in it inside a user namespace:
    such a folder is taken apart until no part has one.
    """
    try:
        mode = os.lstat(folder).st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode) and stack is not None and folder in SHARED_FOLDERS:
        return  # one of the guard's
    if stat.S_ISLNK(mode):
        yield from ("--symlink", str(Path(folder).readlink()), folder)
    elif not stat.S_ISDIR(mode):
        yield from ("--ro-bind-try", folder, folder)
    elif not os.access(folder, os.R_OK | os.X_OK):
        yield from ("--dir", folder)
    elif any(mount.startswith(f"{folder}/") for mount in mounts):
        yield from ("--dir", folder)
        for name in sorted(entry.name for entry in Path(folder).iterdir()):
            yield from _shared(f"{folder}/{name}", mounts, skeleton, stack)
    else:
        # bubblewrap stacks the sources: the last one lies on top.
        sources = [Path(folder)]
        if skeleton is not None and Path(f"{skeleton}{folder}").is_dir():
            sources.append(Path(f"{skeleton}{folder}"))
        if stack is not None:
            yield from stack.overlay(folder, sources)
            return
        for source in sources:
            yield from ("--overlay-src", str(source))
        yield from ("--tmp-overlay", folder)


def host_mounts() -> frozenset[str]:
    """Mount points of this process's mount namespace."""
    text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    return frozenset(
        line.split()[4].encode().decode("unicode_escape") for line in text.splitlines()
    )


def interpreter_prefix() -> Path | None:
    """The running interpreter's base prefix, where it needs to be shown on its own."""
    prefix = Path(sys.base_prefix).resolve()
    if any(prefix.is_relative_to(folder) for folder in SHARED_FOLDERS):
        return None
    everything_below = (Path.home(), Path.cwd(), Path("/root"), Path("/home"))
    if any(folder.is_relative_to(prefix) for folder in everything_below):
        return None  # it would show more than an interpreter
    return prefix if os.access(prefix / "bin", os.R_OK | os.X_OK) else None


def hidden_folders(folders: Iterable[Path], shared: Sequence[str]) -> tuple[Path, ...]:
    """Which of ``folders`` (the project, the task) a sandbox would see, and must not.

    One that holds the running interpreter cannot be hidden.
    """
    interpreter = Path(sys.base_prefix).resolve()
    return tuple(
        folder
        for folder in dict.fromkeys(path.resolve() for path in folders)
        if any(Path(top) in folder.parents for top in shared)
        and not interpreter.is_relative_to(folder)
    )


def make_skeleton(target: Path, folders: Sequence[str] = ("/usr",)) -> None:
    """Copy the upper levels of folders (names and modes only).

    Laid over ``/usr`` they belong to the one uid of a normal user's sandbox, which could
    not write there otherwise.
    """
    for top in folders:
        _copy_levels(top, f"{target}{top}", levels=3)
    local = "/usr/local"
    _copy_levels(local, f"{target}{local}", levels=6)


def _copy_levels(source: str, target: str, levels: int) -> None:
    os.makedirs(target, exist_ok=True)  # noqa: PTH103  # hundreds of them
    os.chmod(target, 0o755)  # noqa: PTH101, S103  # as /usr itself
    if levels == 0:
        return
    try:
        inner = [
            entry.name
            for entry in os.scandir(source)
            if entry.is_dir(follow_symlinks=False)
        ]
    except OSError:
        return
    for name in inner:
        _copy_levels(f"{source}/{name}", f"{target}/{name}", levels - 1)
