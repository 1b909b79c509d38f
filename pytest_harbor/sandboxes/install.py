"""Running an install script in a sandbox that a provider made for it."""

from __future__ import annotations

import secrets
import shlex
from typing import Final

from pytest_harbor.errors import InstallFailed
from pytest_harbor.sandboxes.api import (
    INSTALLED_VERSION,
    ExecResult,
    InstallScript,
    Sandbox,
    Upload,
)

SHOWN_LINES: Final = 30
"""Last lines of a script's output that an error shows."""

_PROBE_SECONDS: Final = 120.0
_RUN: Final = 'mkdir -p -- "$AGENT_PREFIX/bin" && exec bash "$1" 2>&1'
_PROBE: Final = 'PATH=$AGENT_PREFIX/bin:$PATH; export PATH; exec "$@"'
# Whatever umask the script had: other users must be able to run what it brought.
_FINISH: Final = (
    f'cat >"$AGENT_PREFIX/{INSTALLED_VERSION}"; rm -f -- "$1"; '
    'chmod -R a+rX -- "$AGENT_PREFIX"'
)


async def run_install(sandbox: Sandbox, install: InstallScript) -> None:
    """Run the script, then its probe, in ``sandbox``, which has the network that it needs.

    Raises:
        InstallFailed: it did not end well, or not in time; with its last lines.
        SandboxError: infrastructure failed.
    """
    path = f"/tmp/harbor-install-{secrets.token_hex(8)}.sh"  # noqa: S108 - a name of its own
    await sandbox.upload([Upload(install.script.encode(), path)])
    env = install.variables
    done = await sandbox.exec(
        ["/bin/sh", "-c", _RUN, "sh", path],
        user=0,
        cwd="/",
        env=env,
        timeout_seconds=install.timeout_seconds,
    )
    if not done.ok:
        raise _failed(install, "its install script", done, install.timeout_seconds)
    version = ""
    if install.probe:
        probed = await sandbox.exec(
            ["/bin/sh", "-c", _PROBE, "sh", *install.probe],
            user=0,
            cwd="/",
            env=env,
            timeout_seconds=_PROBE_SECONDS,
        )
        if not probed.ok:
            what = f"its install script ended well, but `{shlex.join(install.probe)}`"
            raise _failed(install, what, probed, _PROBE_SECONDS)
        version = probed.stdout
    finished = await sandbox.exec(
        ["/bin/sh", "-c", _FINISH, "sh", path],
        user=0,
        cwd="/",
        env=env,
        stdin=version.encode(),
        timeout_seconds=_PROBE_SECONDS,
    )
    if not finished.ok:
        raise _failed(install, f"keeping {install.prefix}", finished, _PROBE_SECONDS)


def _failed(
    install: InstallScript, what: str, result: ExecResult, seconds: float
) -> InstallFailed:
    how = f"ended with exit code {result.exit_code}"
    if result.timed_out:
        how = f"ran out of its {seconds:g} s"
    elif result.exit_code == 127 and "bash" in result.stderr:
        how += " (install scripts need bash)"
    lines = [line for line in result.output.splitlines() if line.strip()]
    text = "\n".join([f"agent {install.name}: {what} {how}", *lines[-SHOWN_LINES:]])
    return InstallFailed(text)
