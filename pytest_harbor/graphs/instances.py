"""What a run has deployed: instances, registered before they can leak (spec 2.3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.environment import Limits


class Instance(ABC):
    """Something that a run deployed and that must be stopped: a server, mostly.

    ``sandbox`` is ``None`` for an agent that is no process in a sandbox of ours.
    """

    instance_id: str
    """Unique per deployment."""
    what: str
    """For messages: ``env 'library'``, ``agent 'clerk'``."""
    sandbox: Sandbox | None
    url: str
    """Its base URL as this process reaches it; empty without a server."""
    token: str | None = None
    """What opens it beside its card: to the engine, and not to other agents."""
    created_at_utc: str
    expires_at_utc: str
    is_stopped: bool = False
    """True once :meth:`stop`, or its lifetime, has ended its sandbox, too."""

    @property
    @abstractmethod
    def death(self) -> str | None:
        """Why it is gone, as a phrase: ``ended by itself (exit code 1)``, the log's tail.

        ``None`` while it is well. Whoever cannot reach it says this beside ``what``.
        """

    @abstractmethod
    async def url_from(self, sandbox: Sandbox | None) -> str:
        """Its base URL as commands in ``sandbox`` reach it; ``None`` is this process.

        Raises:
            UnsupportedByProvider: they cannot.
        """

    @abstractmethod
    async def log_tail(self, lines: int = 30) -> str:
        """The last lines of its log, secrets masked; empty when there is none."""

    @abstractmethod
    async def stop(self) -> None:
        """End it and leave nothing; may be called again. Raises SandboxError.

        Whoever calls it shields it from cancellation, and may set it a limit.
        """


@dataclass(frozen=True)
class AgentLaunch:
    """An agent that is wanted.

    ``agent_id`` is looked up in the bundle, among registered agents, then among aliases.
    """

    agent_id: str
    name: str
    """Its name in the run, or what it is for (``judge of 'manners'``)."""
    version: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of its process, templates already resolved."""
    sandbox_type: str | None = None
    ttl_seconds: float = 7200.0
    limits: Limits = field(default_factory=Limits)
    model: str | None = None
    """The model it will be asked to use, for agents that must know it at their start."""
    network_policy: Mapping[str, object] | None = None
