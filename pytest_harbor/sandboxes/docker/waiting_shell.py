"""A shell that is started ahead of its command, while the daemon copies files.

The daemon does both at once, so the command that needs the files does not wait for
its shell as well. The shell reads from its input what to do.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass

import docker

from pytest_harbor.sandboxes.docker.client import DaemonError, Engine
from pytest_harbor.sandboxes.docker.exec import Connection, ExecCall
from pytest_harbor.sandboxes.docker.scripts import MARKER, SHELL


@dataclass(frozen=True)
class WaitingShell:
    """A started shell of ``user``; what runs in it carries ``marker``."""

    user: str
    marker: str
    connection: Connection

    @classmethod
    async def start(cls, engine: Engine, container: str, user: str) -> WaitingShell:
        """Start one; returns before it is there. Raises DaemonError."""
        marker = secrets.token_hex(8)

        def create_and_start(client: docker.APIClient) -> Connection:
            answer = client.exec_create(
                container,
                [SHELL],
                stdin=True,
                user=user,
                workdir="/",
                environment={MARKER: marker},
            )
            exec_id = str(answer["Id"])
            return Connection(exec_id, client.exec_start(exec_id, socket=True))

        return cls(user, marker, await engine.call(create_and_start))


class ExpectedCommand:
    """The command that is expected next in a container, and the shell that waits for it.

    A shell waits for one command only: whichever comes first takes it or ends it.
    """

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container
        self._user: str | None = None
        self.shell: WaitingShell | None = None

    def announce(self, user: str) -> None:
        """A command of ``user`` comes right after the next transfer."""
        self._user = user

    async def start_shell(self) -> None:
        """Start the shell of what was announced, if anything was.

        Where that fails the command is started as any other.
        """
        user, self._user = self._user, None
        self.let_go()
        if user is not None:
            with contextlib.suppress(DaemonError):
                self.shell = await WaitingShell.start(
                    self._engine, self._container, user
                )

    def shell_for(self, call: ExecCall) -> WaitingShell | None:
        """The shell that waits for ``call``, if it is this one that it waits for."""
        shell = self.shell
        if shell is None or shell.user != call.user or call.script() is None:
            self.let_go()
            return None
        self.shell = None
        return shell

    def let_go(self) -> None:
        """End a shell that waits in vain: its input ends."""
        shell, self.shell = self.shell, None
        if shell is not None:
            shell.connection.close()
