"""Files that a command finds in the sandbox, and files that it left there."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

from pytest_harbor.agents.api import AgentTurn, McpServer
from pytest_harbor.agents.command.declaration import (
    AgentDeclaration,
    McpWriter,
    PlacedFile,
    UnsupportedServer,
)
from pytest_harbor.errors import AGENT_CONFIG_ERROR, AgentError
from pytest_harbor.sandboxes.api import ExecResult, Sandbox
from pytest_harbor.sandboxes.environment import User
from pytest_harbor.sandboxes.install_script import INSTALLED_VERSION
from pytest_harbor.sandboxes.transfer_types import Upload

STEP_SECONDS: Final = 60.0
"""For one of these small commands."""
MAX_FILES: Final = 50
MAX_BYTES: Final = 128 * 1024 * 1024
"""Of all files that are read; an agent may leave anything there."""

_HOMES: Final = "/logs/homes"
"""Of users of a sandbox whose real homes would outlive it."""

# A user without a passwd entry, or without a folder of its own, gets one: CLIs keep their
# sessions there.
_FIND_HOME: Final = """\
home=$HOME
if [ -n "$2" ]; then
  home=$2/$(id -u)
  mkdir -p -- "$home" || exit 1
elif [ -z "$home" ] || [ ! -d "$home" ] || [ ! -w "$home" ]; then
  home=/tmp/harbor-home-$(id -u)
  mkdir -p -- "$home" || exit 1
fi
printf '%s\n' "$home"
[ -z "$1" ] || head -n 1 "$1" 2>/dev/null
exit 0
"""
# As the agent's user: what the CLI then makes beside it must be its own.
_WRITE: Final = """\
umask 077
folder=${1%/*}
[ -z "$folder" ] || mkdir -p -- "$folder" && cat >"$1"
"""
_NO_FOLDER: Final = 3
_MAKE: Final = 'mkdir -p -- "$1"'
_COPY: Final = f"""\
[ -d "$1" ] || exit {_NO_FOLDER}
cp -R -- "$1"/. "$2"/
"""
# Not quoted in "for", and without fields: patterns are expanded, nothing else is.
_LIST: Final = """\
IFS=
for pattern do
  for file in $pattern; do
    [ -f "$file" ] && printf '%s\\0' "$file"
  done
done
exit 0
"""


async def look_round(
    sandbox: Sandbox, user: User | None, declaration: AgentDeclaration
) -> tuple[str, str | None]:
    """A folder that ``user`` can write, its home where there is one, and what ``probe`` said.

    Raises:
        SandboxError: infrastructure failed.
    """
    is_installed = declaration.install is not None
    file = f"{declaration.prefix}/{INSTALLED_VERSION}" if is_installed else ""
    homes = ""
    if not sandbox.is_disposable:
        homes = _HOMES
        make = ["/bin/sh", "-c", f"mkdir -p {homes} && chmod 1777 {homes}"]
        await sandbox.exec(make, user=0, timeout_seconds=STEP_SECONDS)
    result = await sandbox.exec(
        ["/bin/sh", "-c", _FIND_HOME, "sh", file, homes],
        user=user,
        timeout_seconds=STEP_SECONDS,
    )
    home, _, version = result.stdout.partition("\n")
    return posixpath.normpath(home or "/"), version.strip() or None


def expanded(path: str, home: str) -> str:
    """``~/...`` as an absolute path."""
    return posixpath.join(home, path[2:]) if path.startswith("~/") else path


def mcp_files(
    writer: McpWriter,
    servers: Sequence[McpServer],
    name: str,
    warnings: list[str],
) -> Sequence[PlacedFile]:
    """The files that make a CLI use ``servers``; one that it cannot use is a warning."""
    usable = []
    for server in servers:
        try:
            writer([server])
        except UnsupportedServer as error:
            warnings.append(
                f"agent '{name}' is not told of MCP server '{server.name}': {error}"
            )
            continue
        usable.append(server)
    return writer(usable) if usable else ()


async def place(sandbox: Sandbox, user: User | None, path: str, content: str) -> None:
    """Write a file that only ``user`` can read.

    Raises:
        AgentError: it cannot be written there.
        SandboxError: infrastructure failed.
    """
    result = await sandbox.exec(
        ["/bin/sh", "-c", _WRITE, "sh", path],
        user=user,
        stdin=content.encode(),
        timeout_seconds=STEP_SECONDS,
    )
    if not result.ok:
        raise AgentError(
            f"{path} cannot be written in the sandbox: {result.output.strip()}",
            AGENT_CONFIG_ERROR,
        )


async def remove(sandbox: Sandbox, paths: Sequence[str]) -> None:
    """Remove files; what an agent did to prevent it harms nobody. Raises SandboxError."""
    await sandbox.exec(
        ["rm", "-f", "--", *paths], user=0, cwd="/", timeout_seconds=STEP_SECONDS
    )


async def place_skills(turn: AgentTurn, target: str) -> list[str]:
    """Put skills where the CLI looks for them; returns what went wrong.

    Raises:
        SandboxError: infrastructure failed.
    """
    problems: list[str] = []
    made = await _as_user(turn, _MAKE, target)
    if not made.ok:
        return [f"skills cannot be placed in {target}: {made.output.strip()}"]
    if turn.skills_dir:
        copied = await _as_user(turn, _COPY, turn.skills_dir, target)
        what = copied.output.strip()
        if copied.exit_code == _NO_FOLDER:
            what = "there is no such folder in the sandbox"
        if not copied.ok:
            problems.append(f"[environment].skills_dir = '{turn.skills_dir}': {what}")
    for folder in turn.skills:
        if not folder.is_dir():
            problems.append(f"skills: {folder} is no folder")
            continue
        await turn.sandbox.upload([Upload(folder, target)])
    return problems


async def _as_user(turn: AgentTurn, script: str, *arguments: str) -> ExecResult:
    return await turn.sandbox.exec(
        ["/bin/sh", "-c", script, "sh", *arguments],
        user=turn.user,
        timeout_seconds=STEP_SECONDS,
    )


async def read_files(sandbox: Sandbox, patterns: Sequence[str]) -> dict[str, str]:
    """Files that match, sorted by pattern and name. Raises SandboxError."""
    if not patterns:
        return {}
    found = await sandbox.exec(
        ["/bin/sh", "-c", _LIST, "sh", *patterns],
        user=0,
        cwd="/",
        timeout_seconds=STEP_SECONDS,
    )
    paths = dict.fromkeys(path for path in found.stdout.split("\0") if path)
    files: dict[str, str] = {}
    room = MAX_BYTES
    for path in list(paths)[:MAX_FILES]:
        content = await sandbox.read_bytes(path, max_bytes=room)
        if content is not None:
            files[path] = content.decode(errors="replace")
            room -= len(content)
    return files
