"""Deploy a command-line agent as an A2A agent: its sandbox, and the bridge to it (spec 6)."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from pytest_harbor.agents.command.declaration import AgentDeclaration
from pytest_harbor.agents.command.needs import install_script, needs_of
from pytest_harbor.errors import SandboxError, StepError, UnsupportedByProvider
from pytest_harbor.graphs.agents import WORKDIR, AgentSource, new_token
from pytest_harbor.graphs.instances import AgentLaunch, Instance
from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.choose import LOCAL, provider_name
from pytest_harbor.sandboxes.environment import EnvironmentSpec

if TYPE_CHECKING:
    from pytest_harbor.graphs.deployments import Starter
    from pytest_harbor.protocols.in_process import InProcessServer
    from pytest_harbor.sandboxes.output import Masker

DEFAULT_IMAGE: Final = "debian:12-slim"
"""Where a sandbox is a container and nobody names an image; install scripts need its apt."""
_NETWORK: Final = "public"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]+")


def bridged_agents(
    declarations: Mapping[str, Callable[[], AgentDeclaration]],
    *,
    image: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, AgentSource]:
    """Declared agents (``agents.registry.all_declarations``) as ones that steps deploy."""
    return {
        name: BridgeSource(name, declare, image=image, environ=environ)
        for name, declare in declarations.items()
    }


class BridgeSource(AgentSource):
    """A declared command, served over A2A while its run lasts.

    ``image`` is that of its sandbox where one is needed; ``environ`` is where its keys
    are looked up (default: the process's own environment).
    """

    def __init__(
        self,
        name: str,
        declare: Callable[[], AgentDeclaration],
        *,
        image: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.image = image
        self._declare = declare
        self._environ = os.environ if environ is None else environ

    @cached_property
    def declaration(self) -> AgentDeclaration:
        """What is deployed. Raises SettingsError."""
        return self._declare()

    def provider(self, choice: str) -> str:
        return provider_name(choice, self.image is not None)

    def spec(self, launch: AgentLaunch, provider: str) -> EnvironmentSpec:
        """What its sandbox is made of."""
        image = self.image
        if image is None and provider != LOCAL:
            image = DEFAULT_IMAGE
        return EnvironmentSpec(
            image=image,
            workdir=WORKDIR,
            network=_NETWORK,
            limits=launch.limits,
            install=install_script(self.declaration, self._environ),
        )

    def check(self, launch: AgentLaunch) -> None:
        """Refuse one whose key is not set, or that cannot be told its model.

        Raises:
            StepError: as ``AgentSource.check``.
            SettingsError: its declaration is broken.
        """
        if launch.version not in (None, 1):
            raise StepError(f"agent '{self.name}' has version 1 only")
        needs = needs_of(
            self.declaration, self.name, launch.model, _NETWORK, self._environ
        )
        # A model may still be named by a prompt: without one, only keys can be missing.
        problems = [*needs.missing_keys, *(needs.problems if launch.model else ())]
        if problems:
            raise StepError("; ".join(str(problem) for problem in problems))

    async def start(
        self,
        launch: AgentLaunch,
        starter: Starter,
        *,
        ready_seconds: float,  # noqa: ARG002 - its server is ready when it is made
    ) -> Instance:
        from pytest_harbor.agents.bridge import BridgedAgent
        from pytest_harbor.protocols.agent_server import create_app
        from pytest_harbor.protocols.in_process import InProcessServer

        self.check(launch)
        around = starter.surroundings
        where = self.provider(launch.sandbox_type or "auto")
        slug = _UNSAFE.sub("-", launch.name)[:40].strip("-.") or "agent"
        instance_id = f"agent-{slug}-{secrets.token_hex(4)}"
        sandbox = await starter.provider(where).start(
            self.spec(launch, where), name=instance_id, labels=around.labels
        )
        logs = around.logs / instance_id
        instance = BridgeInstance(launch, instance_id, sandbox, logs, around.masker)
        starter.register(instance)
        try:
            agent = BridgedAgent(
                self.declaration,
                sandbox,
                logs=logs,
                environ=self._environ,
                masker=around.masker,
                env=launch.env,
                model=launch.model,
            )
            instance.token = new_token(starter)
            app = create_app(agent, token=instance.token)
            instance.server = InProcessServer(app)
        except BaseException:
            await around.dispose(instance)
            raise
        instance.url = instance.server.url
        around.background.start_soon(instance.server.run, name=f"serve {instance.what}")
        around.background.start_soon(instance.live, name=f"watch {instance.what}")
        return instance


class BridgeInstance(Instance):
    """A command-line agent in its sandbox, and its server in this process."""

    sandbox: Sandbox

    def __init__(
        self,
        launch: AgentLaunch,
        instance_id: str,
        sandbox: Sandbox,
        logs: Path,
        masker: Masker,
    ) -> None:
        now = datetime.now(timezone.utc)
        self.instance_id = instance_id
        self.what = f"agent '{launch.name}'"
        self.sandbox = sandbox
        self.url = ""
        self.server: InProcessServer | None = None
        self.created_at_utc = now.isoformat(timespec="milliseconds")
        expires = now + timedelta(seconds=launch.ttl_seconds)
        self.expires_at_utc = expires.isoformat(timespec="milliseconds")
        self._ttl_seconds = launch.ttl_seconds
        self._logs = logs
        self._masker = masker
        self._death: str | None = None
        self._living = anyio.CancelScope()
        self._stopping = anyio.Lock()

    @property
    def death(self) -> str | None:
        return self._death

    async def url_from(self, sandbox: Sandbox | None) -> str:
        if sandbox is None:
            return self.url
        address = await sandbox.host_address()
        if not ipaddress.ip_address(address).is_loopback:
            raise UnsupportedByProvider(
                f"{self.what} is served by the runner's process, which a "
                f"{sandbox.provider} sandbox cannot reach"
            )
        return self.url

    async def log_tail(self, lines: int = 30) -> str:
        files = sorted(self._logs.glob("turn-*/*.stderr.txt"))
        if not files:
            return ""
        text = await anyio.Path(files[-1]).read_text("utf-8", "replace")
        return "\n".join(text.strip().splitlines()[-lines:])

    async def live(self) -> None:
        """Wait for the end of its lifetime, and end it then."""
        with self._living:
            await anyio.sleep(self._ttl_seconds)
            seconds = self._ttl_seconds
            self._death = f"reached its lifetime of {seconds:g} s (ttl_seconds)"
            try:
                await self._end()
            except SandboxError:
                return  # the teardown tries again, and reports

    async def stop(self) -> None:
        self._living.cancel()
        await self._end()
        if self._death is None:
            self._death = "was stopped"

    async def _end(self) -> None:
        async with self._stopping:
            if self.is_stopped:
                return
            if self.server is not None:
                await self.server.stop()
            await self.sandbox.stop()
            self.is_stopped = True
            # A command that was being cancelled may have written until now.
            await anyio.to_thread.run_sync(self._masker.folder, self._logs)
