"""Install scripts: run in a sandbox that a provider made for it, once on a machine."""

from __future__ import annotations

import os
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import anyio

from pytest_harbor.errors import InstallFailed, SandboxStartFailed
from pytest_harbor.sandboxes.api import ExecResult, Sandbox, Tell
from pytest_harbor.sandboxes.install_script import INSTALLED_VERSION, InstallScript
from pytest_harbor.sandboxes.machine import alone, shared_folder
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.sandboxes.transfer_types import Upload

SHOWN_LINES: Final = 30
"""Last lines of a script's output that an error shows."""

T = TypeVar("T")
_PROBE_SECONDS: Final = 120.0
_MAX_FAILURES: Final = 2
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
    return InstallFailed(Masker(install.secrets).text(text))


class Installs:
    """What one provider makes once on this machine: installations, layers of images.

    ``failure`` is raised when ``make`` cannot do it, and for those who waited for it;
    ``verb`` is what messages say is done (``installing``, ``installs``).
    """

    def __init__(
        self,
        failure: type[SandboxStartFailed] = InstallFailed,
        verb: tuple[str, str] = ("installing", "installs"),
    ) -> None:
        self._failure = failure
        self._verb = verb
        self._session_began = time.time()
        self._locks: dict[str, anyio.Lock] = {}
        self._failures: dict[str, list[SandboxStartFailed]] = {}

    async def once(
        self,
        key: str,
        find: Callable[[], Awaitable[T | None]],
        make: Callable[[], Awaitable[T]],
        *,
        what: str,
        tell: Tell | None = None,
        force: bool = False,
    ) -> T:
        """What ``find`` finds, else what ``make`` makes, whichever process is first.

        Workers that wait for one another share a failure. One that comes again is not
        waited for a third time: every episode with this agent would. ``force`` makes it anew,
        once per session. ``tell`` hears that ``what`` is being installed.

        Raises:
            InstallFailed: the script failed.
            SandboxError: infrastructure failed.
        """
        waited_since = time.time()
        async with self._locks.setdefault(key, anyio.Lock()):
            failures = self._failures.setdefault(key, [])
            if len(failures) >= _MAX_FAILURES:
                raise self._failure(str(failures[-1]))
            if not force and (found := await find()) is not None:
                return found
            try:
                doing, does = self._verb
                folder = shared_folder("installs")
                lock = folder / f"{key}.lock"
                async with alone(lock, tell, does=f"{does} {what}"):
                    record = _Record(folder / key, self._failure)
                    fresh = self._session_began if force else 0.0
                    is_fresh = record.made_at >= fresh
                    if is_fresh and (found := await find()) is not None:
                        return found
                    record.refuse_known(waited_since)
                    if tell is not None:
                        tell(f"{doing} {what}")
                    return await record.keep(make)
            except self._failure as error:
                failures.append(error)
                raise


class _Record:
    """What is known about one installation on this machine, kept beside its lock."""

    def __init__(self, stem: Path, failure: type[SandboxStartFailed]) -> None:
        self._failure = failure
        self._made = stem.with_suffix(".made")
        self._failed = stem.with_suffix(".failed")

    @property
    def made_at(self) -> float:
        return _modified(self._made)

    def refuse_known(self, since: float) -> None:
        """Share the failure of whoever had its turn while we waited for ours."""
        if _modified(self._failed) >= since:
            raise self._failure(self._failed.read_text())

    async def keep(self, make: Callable[[], Awaitable[T]]) -> T:
        try:
            made = await make()
        except self._failure as error:
            self._failed.write_text(str(error))
            _stamp(self._failed)
            raise
        self._failed.unlink(missing_ok=True)
        self._made.touch()
        _stamp(self._made)
        return made


def _stamp(path: Path) -> None:
    """Set its time by the clock that it is compared with; a file system's is coarser."""
    now = time.time()
    os.utime(path, (now, now))


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return -1.0
