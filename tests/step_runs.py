"""Steps run by themselves: a context, an object store in a folder, agents on sockets.

The engine around it is left out.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from pytest_harbor.agents.scripted.agent import ScriptedAgent
from pytest_harbor.agents.scripted.script import read_script
from pytest_harbor.errors import SandboxError, StepError
from pytest_harbor.graphs.context import DeployedAgent, Journal, RunContext
from pytest_harbor.graphs.instances import AgentLaunch, Instance
from pytest_harbor.graphs.objects import FolderStore
from pytest_harbor.graphs.steps.api import RunSettings, StepRun
from pytest_harbor.protocols.agent_server import create_app
from pytest_harbor.sandboxes.output import Masker
from servers.running import Servers


class Served(Instance):
    """An agent in this process, on a socket. ``sandbox`` may be a scripted one."""

    def __init__(self, url: str, name: str, sandbox: Any = None) -> None:
        self.instance_id = f"instance-{name}"
        self.what = f"agent '{name}'"
        self.sandbox = sandbox
        self.url = url
        self.created_at_utc = self.expires_at_utc = ""
        self.is_stopped = False
        self.dies_with: str | None = None
        self.log = ""
        self.stop_error: SandboxError | None = None

    @property
    def death(self) -> str | None:
        return self.dies_with

    async def url_from(self, sandbox: Any) -> str:
        return self.url

    async def log_tail(self, lines: int = 30) -> str:
        return self.log

    async def stop(self) -> None:
        await anyio.lowlevel.checkpoint()  # where a cancellation would strike
        self.is_stopped = True
        if self.stop_error:
            raise self.stop_error


class Run(StepRun):
    """The run of one step after the other, with agents that are served in this process."""

    def __init__(
        self, root: Path, servers: Servers, settings: RunSettings | None = None
    ) -> None:
        self.journal = Journal(RunContext("run-1"))
        self.context = self.journal.context
        self.settings = settings or RunSettings()
        self.store = FolderStore(root / "objects")
        self.masker = Masker(())
        self.environ = os.environ
        self.logs = root / "logs"
        self.warnings: list[str] = []
        self.instances: dict[str, Instance] = {}
        self.launches: list[AgentLaunch] = []
        self.scripts: dict[str, list[Any]] = {}
        """Agents that :meth:`start_agent` can start, by ID."""
        self.agent_sandbox: Any = None
        self.servers = servers

    def deploy(self, name: str, *answers: Any, sandbox: Any = None) -> Served:
        """Serve a script under a name of the run."""
        served = self._serve(name, answers, sandbox)
        record = DeployedAgent(name, served.url, served.instance_id)
        self.journal.write("deploy", record)
        return served

    def serve_app(self, app: Any) -> str:
        return self.servers.start(app)

    def _serve(self, name: str, answers: Any, sandbox: Any) -> Served:
        agent = ScriptedAgent(read_script(json.dumps(list(answers)), name))
        url = self.serve_app(create_app(agent))
        served = Served(url, name, sandbox)
        self.instances[served.instance_id] = served
        return served

    def write(self, *changes: Any) -> None:
        self.journal.write("step", *changes)

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def reserve(self, kind: Any, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    async def start_server(self, plan: Any) -> Instance:
        raise NotImplementedError

    async def dispose(self, *instances: Instance) -> None:
        with anyio.CancelScope(shield=True):
            for instance in instances:
                await self._stop(instance)

    async def _stop(self, instance: Instance) -> None:
        try:
            await instance.stop()
        except SandboxError as error:
            self.warn(f"cannot stop {instance.what}: {error}")

    async def start_agent(self, launch: AgentLaunch) -> Instance:
        self.launches.append(launch)
        if launch.agent_id not in self.scripts:
            raise StepError(f"no agent '{launch.agent_id}'")
        name = f"{launch.name}-{len(self.launches)}"
        return self._serve(name, self.scripts[launch.agent_id], self.agent_sandbox)

    def instance(self, instance_id: str) -> Instance | None:
        return self.instances.get(instance_id)

    def stored(self, pattern: str) -> list[Any]:
        """The JSON objects of the store whose keys match, by key."""
        paths = sorted(self.store.root.glob(pattern))
        return [json.loads(path.read_text()) for path in paths]
