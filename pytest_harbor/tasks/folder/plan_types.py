"""The frozen plan of an episode: every fallback of the specification resolved.

Plain data: ``pydantic.TypeAdapter(EpisodePlan)`` dumps and reads it as JSON. Values of
``${VAR}`` templates are *not* in it; the engine resolves them at seed (spec 3.11), so a
plan on disk holds no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pytest_harbor.errors import Problem

VerifierMode: TypeAlias = Literal["shared", "separate"]
Origin: TypeAlias = Literal["convention", "task", "step"]
RewardStrategy: TypeAlias = Literal["mean", "final"]
NetworkMode: TypeAlias = Literal["public", "no-network", "allowlist"]
McpTransport: TypeAlias = Literal["stdio", "sse", "streamable-http"]
User: TypeAlias = str | int


@dataclass(frozen=True)
class HealthCheckPlan:
    """A health check (spec 3.7). Times in seconds; ``retries`` is at least 1."""

    command: str
    interval_seconds: float = 5.0
    timeout_seconds: float = 30.0
    start_period_seconds: float = 0.0
    start_interval_seconds: float = 5.0
    retries: int = 3


@dataclass(frozen=True)
class CollectHookPlan:
    """A command run between the agent and the verifier (spec 3.9)."""

    command: str
    service: str = "main"
    timeout_seconds: float = 60.0
    user: User | None = None
    origin: Origin = "task"


@dataclass(frozen=True)
class ArtifactPlan:
    """A path that is collected after the agent (spec 3.10, 7).

    ``destination`` is relative to ``artifacts/`` and always set.
    """

    source: str
    destination: str
    exclude: tuple[str, ...] = ()
    service: str = "main"
    origin: Origin = "task"


@dataclass(frozen=True)
class EnvironmentPlan:
    """An environment (spec 3.4). Exactly one image source, or none (local only)."""

    image: str | None = None
    build_context: Path | None = None
    files: Path | None = None
    compose_file: Path | None = None
    variables: tuple[str, ...] = ()
    """Variables of the host that the Compose file names."""
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """Templates unresolved."""
    table: str = "[environment]"
    """Where it was declared, for messages."""
    network: NetworkMode = "public"
    allowed_hosts: tuple[str, ...] = ()
    cpus: float | None = None
    memory_mib: int | None = None
    storage_mib: int | None = None
    start_timeout_seconds: float = 600.0
    platform: str | None = None
    """What images are built for; ``None`` means the daemon's own."""

    @property
    def needs_container(self) -> bool:
        """True when it names an image, a Dockerfile or a Compose file."""
        return bool(self.image or self.build_context or self.compose_file)


@dataclass(frozen=True)
class NetworkPlan:
    """The network of one phase, where it is not the sandbox's own (spec 3.12, Q21)."""

    mode: NetworkMode
    allowed_hosts: tuple[str, ...] = ()
    table: str = "[agent]"
    """Where it was declared, for messages."""


@dataclass(frozen=True)
class InputFolder:
    """A folder of the task that goes into the sandbox, and what stays behind."""

    path: Path
    exclude: frozenset[str] = frozenset()


@dataclass(frozen=True)
class VerifierPlan:
    """How a turn is verified (spec 8)."""

    mode: VerifierMode
    budget_seconds: float
    tests: tuple[InputFolder, ...]
    """Layers for ``/tests``, later ones on top."""
    python_verifier: Path | None = None
    """A ``verifier.py`` that grades by a generated ``test.sh`` (spec 6)."""
    image_tests_win: bool = False
    """Separate, single-step: the image's ``/tests/test.sh``, if it has one, is used
    and nothing is uploaded over it (field notes 3.2)."""
    user: User | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    environment: EnvironmentPlan | None = None
    """The verifier's own sandbox; set exactly when ``mode`` is ``separate``."""
    network: NetworkPlan | None = None
    """Of the agent's sandbox while it is verified in; ``None`` means its own."""


@dataclass(frozen=True)
class TurnPlan:
    """One turn: the execution of one step, or of the whole single-step task."""

    index: int
    """0-based."""
    name: str
    """The step's name; the task's ID when it is a single-step task."""
    instruction: str
    """What the agent is told, prompt template applied."""
    agent_user: User | None
    agent_budget_seconds: float | None
    """Scaled; ``None`` when nothing limits it but the deadline (spec Q6)."""
    verifier: VerifierPlan
    artifacts: tuple[ArtifactPlan, ...]
    """In collection order, ``/logs/artifacts`` included."""
    hooks: tuple[CollectHookPlan, ...] = ()
    workdir: Path | None = None
    setup_budget_seconds: float | None = None
    """Set when the step ships ``workdir/setup.sh``; ``inf`` never."""
    has_setup: bool = False
    healthcheck: HealthCheckPlan | None = None
    solution: InputFolder | None = None
    has_solve_script: bool = False
    reference_answer: str | None = None
    """``solution/answer.md``, where there is no ``solve.sh`` (spec 13)."""
    min_reward: float | Mapping[str, float] | None = None
    network: NetworkPlan | None = None
    """Of the sandbox while the agent works; ``None`` means its own."""


@dataclass(frozen=True)
class McpServerPlan:
    """An MCP server for the agent (spec 3.8). Header templates are unresolved."""

    name: str
    transport: McpTransport
    url: str | None = None
    """Of ``sse`` and ``streamable-http``."""
    command: str | None = None
    """Of ``stdio``; run inside the sandbox."""
    args: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    table: str = "[[environment.mcp_servers]]"
    """Where it was declared, for messages."""


@dataclass(frozen=True)
class EpisodePlan:
    """One attempt of one agent at one task, ready to run."""

    task_id: str
    folder: Path
    digest: str
    agent: str
    model: str | None
    attempt: int
    """1-based."""
    environment: EnvironmentPlan
    turns: tuple[TurnPlan, ...]
    is_multi_step: bool
    deadline_seconds: float
    deadline_enforced: bool
    """True: computed from the task, the clock starts when the sandbox is ready.
    False: the default, the clock starts with the episode (spec 14, Q22)."""
    reward_strategy: RewardStrategy = "mean"
    reward_key: str | None = None
    healthcheck: HealthCheckPlan | None = None
    solution_env: Mapping[str, str] = field(default_factory=dict)
    task_data: Mapping[str, object] | None = None
    mcp_servers: tuple[McpServerPlan, ...] = ()
    """For the agent: the task's, then the run's, each name once (spec 3.8)."""
    skills_dir: str | None = None
    """Folder in the sandbox whose content becomes skills of the agent."""
    skills: tuple[Path, ...] = ()
    """Folders on the host whose content does, too: the run's."""
    retries: int = 1
    """New episodes after an outage (``--harbor-retries``)."""
    turn_sessions: Literal["fresh", "continue"] = "fresh"
    agent_outcome_policy: tuple[str, ...] = ()
    agent_setup_timeout_seconds: float = 360.0
    """Bound of the agent's own ``setup``; a term of the deadline too (spec 14)."""
    force_build: bool = False
    folder_digest: str = ""
    """The folder's own part of ``digest``, compared at seed (X30); empty: do not."""
    warnings: tuple[str, ...] = ()
    refusals: tuple[Problem, ...] = ()
    """Why it is refused at seed, whatever the provider (spec 19.6); see ``seed``."""

    @property
    def needs_container(self) -> bool:
        """True when the agent's sandbox or a verifier's is a container."""
        return self.environment.needs_container or any(
            turn.verifier.environment is not None
            and turn.verifier.environment.needs_container
            for turn in self.turns
        )

    @property
    def agent_network(self) -> NetworkMode:
        """What the agent may reach, in its most restricted turn."""
        modes = [
            turn.network.mode if turn.network else self.environment.network
            for turn in self.turns
        ]
        closed = [mode for mode in modes if mode != "public"]
        return closed[0] if closed else "public"

    @property
    def keeps_session(self) -> bool:
        """True when one agent session serves all turns (spec 16)."""
        return self.turn_sessions == "continue" and self.is_multi_step

    @property
    def episode_id(self) -> str:
        """Task, agent and attempt in one name, unique within a run's task."""
        return f"{self.task_id}[{self.agent}-{self.attempt}]"
