"""Commands that do not end by themselves: killed, vanished, or never begun.

Who is to blame is decided here: the container (an outage), the task (a user that the image
does not have), or the agent (a shell that it removed, which is a missing program).
"""

from __future__ import annotations

import anyio

from pytest_harbor.errors import SandboxError, SandboxLost, UnsupportedByProvider
from pytest_harbor.sandboxes.api import KILLED, ExecResult
from pytest_harbor.sandboxes.docker import exec as execs
from pytest_harbor.sandboxes.docker.client import DaemonError
from pytest_harbor.sandboxes.docker.life import Life
from pytest_harbor.sandboxes.docker.scripts import SHELL
from pytest_harbor.sandboxes.docker.stream import ExecStream

_NO_PROGRAM = 127
_SHELL_IS_GONE = (
    "no such file or directory",
    "executable file not found",
    "permission denied",
    "exec format error",
)
"""What container runtimes say of a program that is not there or cannot be started."""

_POLL_SECONDS = 0.05
_SETTLE_SECONDS = 0.5
_PROBE_SECONDS = 30.0


async def kill(life: Life, call: execs.ExecCall, stream: ExecStream) -> None:
    """Kill what ``call`` started; if that fails, the container with it.

    Raises:
        SandboxLost: the container was killed.
    """
    since = stream.begin.start_ticks if stream.begin else 0
    try:
        if await execs.kill_tree(life.engine, life.container, call.marker, since):
            return
        reason = "its processes could not be killed one by one"
    except DaemonError as error:
        reason = error.text
    raise await life.kill(
        f"a command could not be ended by itself ({reason}); "
        "the whole container was killed"
    )


async def exit_code(life: Life, exec_id: str) -> int:
    """The exit code of a wrapper that died without a word (somebody killed it).

    Raises:
        SandboxLost: the container died with it.
    """
    try:
        facts = await life.engine.call(lambda client: client.exec_inspect(exec_id))
    except DaemonError as error:
        raise await life.lost(error.text) from error
    # The daemon hears of an exec's end before it hears of its container's.
    with anyio.move_on_after(_SETTLE_SECONDS):
        while await life.is_running():  # noqa: ASYNC110 - nobody tells us
            await anyio.sleep(_POLL_SECONDS)
    if not await life.is_running():
        raise await life.lost("it ended while a command ran")
    code = facts.get("ExitCode")
    return KILLED if code is None else int(code)


async def refused(life: Life, call: execs.ExecCall, error: DaemonError) -> SandboxError:
    """The error for an exec that the daemon would not even start."""
    if error.status is None:
        return await life.lost(error.text)
    # Some daemons answer so where others let the exec end without a word.
    return await never_began(life, call, error.text)


async def never_began(life: Life, call: execs.ExecCall, output: str) -> SandboxError:
    """Why not even our own wrapper ran: the user, the shell, or the container."""
    said = output.strip() or "no reason given"
    if not await life.is_running():
        return await life.lost(said)
    if call.user.partition(":")[0] not in ("0", "root") and await _root_can_run(life):
        return UnsupportedByProvider(
            f"docker cannot run commands as user {call.user!r} in image "
            f"{life.image}: {said}. Is the user in the image's /etc/passwd?"
        )
    return SandboxLost(
        f"{life.name} cannot run commands (image {life.image}, shell {SHELL}): {said}"
    )


async def _root_can_run(life: Life) -> bool:
    probe = execs.ExecCall(life.container, ["true"], "0", "/", {})
    stream = ExecStream(probe.token, lambda _: None, lambda _: None)

    async def end(call: execs.ExecCall, stream: ExecStream) -> None:
        await kill(life, call, stream)

    try:
        ended = await execs.run(
            life.engine, probe, stream, timeout_seconds=_PROBE_SECONDS, kill=end
        )
    except DaemonError:
        return False
    return ended.exit_code == 0


async def as_missing_program(life: Life, error: SandboxError) -> ExecResult | None:
    """The result of a command whose shell is gone; ``None`` for another ``error``.

    For a container in which commands ran before: if it is well, the agent has removed the
    shell. That is a missing program as elsewhere, and no outage: nobody can void a
    bad score by deleting ``/bin/sh``.
    """
    shell_is_gone = any(hint in str(error).lower() for hint in _SHELL_IS_GONE)
    if not shell_is_gone or not await life.is_running():
        return None
    return ExecResult(_NO_PROGRAM, "", f"{error}\n")
