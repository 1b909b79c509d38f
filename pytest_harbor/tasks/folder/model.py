"""The tables of ``task.toml`` (spec 3), as checked models.

Legacy spellings are read by :mod:`~pytest_harbor.tasks.folder.legacy` before these
models see the file. Types are TOML's own and are not converted: a string where a
number is due is an error. An integer is a number; a boolean is not.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from pytest_harbor.tasks.folder.artifact_paths import (
    destination_problem,
    source_problem,
)
from pytest_harbor.tasks.folder.names import HEADER_NAME
from pytest_harbor.tasks.folder.plan_types import VerifierMode
from pytest_harbor.tasks.folder.values import (
    Amount,
    Count,
    FiniteNumber,
    Hosts,
    MinReward,
    NetworkMode,
    OperatingSystem,
    Seconds,
    ServiceName,
    StepName,
    Strings,
    Topology,
    User,
    Variables,
    Workdir,
)
from pytest_harbor.tasks.validation import refusal

DEFAULT_VERIFIER_TIMEOUT_SEC = 600.0  # spec 3.3 and 3.5
DEFAULT_BUILD_TIMEOUT_SEC = 600.0  # spec 3.4
MAIN_SERVICE = "main"

# Headers that carry credentials: their value must come from the environment (spec 3.8).
SECRET_HEADER = re.compile(r"auth|token|secret|cookie|api[-_]?key", re.IGNORECASE)
REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
REFERENCE_WITH_DEFAULT = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*:-")


class Table(BaseModel):
    """Base of every table: strict types, frozen, unknown keys tolerated."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", use_attribute_docstrings=True
    )


class NetworkTable(Table):
    """The network keys that several tables share (spec 3.12)."""

    network_mode: NetworkMode | None = None
    """``public``, ``no-network`` or ``allowlist``; unset leaves the baseline."""
    allowed_hosts: Hosts | None = None
    """Hosts that ``allowlist`` lets through, lower-cased; none denies all."""

    @model_validator(mode="after")
    def _hosts_need_allowlist(self) -> NetworkTable:
        if self.allowed_hosts is not None and self.network_mode != "allowlist":
            raise refusal("X21", 'allowed_hosts needs network_mode = "allowlist"')
        return self

    @property
    def restricts_network(self) -> bool:
        """True for ``no-network`` and ``allowlist`` (spec 3.12)."""
        return self.network_mode in ("no-network", "allowlist")


class AuthorConfig(Table):
    """One of ``[task].authors``."""

    name: str | None = None
    """The author's name."""
    email: str | None = None
    """The author's address."""


class TaskInfo(Table):
    """``[task]``: package information. Nothing in running a task needs it."""

    name: str | None = None
    """``org/name``; a label, not the task's ID."""
    version: str | None = None
    """The package's version."""
    description: str | None = None
    """What the task is about."""
    authors: Annotated[tuple[AuthorConfig, ...], Strict(False)] = ()
    """Who wrote it."""
    keywords: Strings = ()
    """Words for catalogues."""


class PytestHarborConfig(Table):
    """``[metadata.pytest_harbor]``: what the author tells this plugin."""

    min_reward: FiniteNumber | None = None
    """Reward from which the task counts as passed; unset: the run's threshold."""
    reward_key: str | None = None
    """Key of ``reward.json`` that is the headline where it has no ``reward``."""
    skip: str | None = None
    """Reason for skipping the task."""
    xfail: str | None = None
    """Reason why the task is expected to fail."""
    markers: Strings = ()
    """Pytest markers for the task's items; the project must register them."""
    timeout: Seconds | None = None
    """Limit for the whole item in seconds; unset: none."""


class MetadataConfig(Table):
    """``[metadata]``: free-form, but for the table that is ours."""

    model_config = ConfigDict(extra="allow")

    pytest_harbor: PytestHarborConfig = Field(default_factory=PytestHarborConfig)
    """What the author tells this plugin."""
    difficulty: Any = None
    """By convention ``easy``, ``medium`` or ``hard``; see ``TaskConfig.difficulty``."""
    category: Any = None
    """By convention a string; see ``TaskConfig.category``."""
    tags: Any = None
    """By convention an array of strings; see ``TaskConfig.tags``."""


class SolutionConfig(Table):
    """``[solution]``: for the oracle alone."""

    env: Variables = Field(default_factory=dict)
    """Environment of ``solve.sh``; values may be ``${VAR}`` templates."""


class AgentConfig(NetworkTable):
    """``[agent]`` and ``[steps.agent]`` (spec 3.2)."""

    timeout_sec: Seconds | None = None
    """Agent budget of one run, in seconds, before the timeout multiplier."""
    user: User | None = None
    """User the agent runs as; unset: the image's default user."""


class HealthCheckConfig(Table):
    """``[environment.healthcheck]`` and ``[steps.healthcheck]`` (spec 3.7)."""

    command: str
    """Shell command; exit code 0 is healthy."""
    interval_sec: FiniteNumber = 5.0
    """Pause between counted attempts, in seconds."""
    timeout_sec: FiniteNumber = 30.0
    """Limit of one attempt, in seconds; passing it is a failed attempt."""
    start_period_sec: FiniteNumber = 0.0
    """Time in seconds in which failures do not count."""
    start_interval_sec: FiniteNumber = 5.0
    """Pause between attempts within the start period, in seconds."""
    retries: int = 3
    """Failures in a row that fail the check; below 1 acts as 1."""


class McpServerConfig(Table):
    """One of ``[[environment.mcp_servers]]`` (spec 3.8)."""

    name: str
    """The server's name, unique within a run."""
    transport: Literal["sse", "streamable-http", "stdio"] = "sse"
    """How to speak to it."""
    url: str | None = None
    """Address; required unless ``transport`` is ``stdio``."""
    command: str | None = None
    """Program; required when ``transport`` is ``stdio``."""
    args: Strings = ()
    """Arguments of ``command``."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers; credentials only as ``${VAR}`` references without a default."""

    @model_validator(mode="after")
    def _complete(self) -> McpServerConfig:
        needed = "command" if self.transport == "stdio" else "url"
        if not getattr(self, needed):
            raise self._refusal(f'transport "{self.transport}" needs {needed}')
        if self.headers and self.transport == "stdio":
            raise self._refusal('transport "stdio" takes no headers')
        for header, value in self.headers.items():
            self._check_header(header, value)
        return self

    def _check_header(self, header: str, value: str) -> None:
        if not HEADER_NAME.fullmatch(header):
            raise self._refusal(f"'{header}' is no header name")
        if "\n" in value or "\r" in value:
            raise self._refusal(f"header '{header}' holds a line break")
        if SECRET_HEADER.search(header) and (
            not REFERENCE.search(value) or REFERENCE_WITH_DEFAULT.search(value)
        ):
            raise self._refusal(
                f"header '{header}' holds a credential: write it as a ${{VAR}}"
                " reference without a default"
            )

    def _refusal(self, problem: str) -> PydanticCustomError:
        return refusal("X22", f"mcp_servers '{self.name}': {problem}")


class TpuConfig(Table):
    """``[environment.tpu]``."""

    type: str
    """TPU generation."""
    topology: Topology
    """``NxM`` or ``NxMxK``."""


class EnvironmentConfig(NetworkTable):
    """``[environment]`` and the verifier's environments (spec 3.4)."""

    docker_image: str | None = None
    """Prebuilt image; with it, a Dockerfile contributes nothing."""
    build_timeout_sec: Seconds = DEFAULT_BUILD_TIMEOUT_SEC
    """Bound for building or pulling the image and starting, in seconds."""
    os: OperatingSystem = "linux"
    """Operating system; this runner has Linux only."""
    cpus: Amount | None = None
    """CPU limit; unset or 0: the provider's default."""
    memory_mb: Count | None = None
    """Memory limit in MiB; unset or 0: the provider's default."""
    storage_mb: Count | None = None
    """Disk limit in MiB; unset or 0: the provider's default."""
    gpus: Count | None = None
    """Number of GPUs; this runner has none."""
    gpu_types: Strings | None = None
    """Acceptable GPU types; unset: any."""
    tpu: TpuConfig | None = None
    """TPU; this runner has none."""
    workdir: Workdir | None = None
    """Working directory in the sandbox; unset: the image's."""
    env: Variables = Field(default_factory=dict)
    """Environment of the sandbox; values may be ``${VAR}`` templates."""
    skills_dir: str | None = None
    """Folder in the sandbox whose content becomes agent skills."""
    mcp_servers: Annotated[tuple[McpServerConfig, ...], Strict(False)] = ()
    """MCP servers for the agent."""
    healthcheck: HealthCheckConfig | None = None
    """Polled once, after the sandbox has started."""


class CollectHookConfig(Table):
    """One of ``[[verifier.collect]]`` and ``[[steps.verifier.collect]]`` (spec 3.9)."""

    command: str
    """Shell command, run between the agent and the verifier."""
    service: ServiceName = MAIN_SERVICE
    """Compose service where it runs."""
    timeout_sec: Seconds = 60.0
    """Limit in seconds; the timeout multiplier does not apply."""
    user: User | None = None
    """User it runs as; unset: the service's default user."""


class ArtifactConfig(Table):
    """One of ``artifacts``; a string is short for ``{ source = <string> }``."""

    source: str
    """Path in the sandbox; absolute for a sidecar."""
    destination: str | None = None
    """Place below ``artifacts/``; unset or empty: mirrors ``source``."""
    exclude: Strings = ()
    """``tar --exclude`` patterns, for directories."""
    service: ServiceName = MAIN_SERVICE
    """Compose service that has the path."""

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: object) -> object:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sound(self) -> ArtifactConfig:
        problem = source_problem(
            self.source, sidecar=self.service != MAIN_SERVICE
        ) or destination_problem(self.source, self.destination)
        if problem:
            raise refusal("X19", f"{self.source}: {problem}")
        return self


class VerifierConfig(NetworkTable):
    """``[verifier]`` and ``[steps.verifier]`` (spec 3.3, 3.5)."""

    timeout_sec: Seconds | None = None
    """Verifier budget in seconds, before the timeout multiplier; unset: 600. A
    step never falls back to the task's."""
    env: Variables = Field(default_factory=dict)
    """Environment of the verifier; values may be ``${VAR}`` templates."""
    user: User | None = None
    """User the verifier runs as; unset: the image's default user."""
    environment_mode: VerifierMode | None = None
    """``shared``: in the agent's sandbox; ``separate``: in one of its own."""
    environment: EnvironmentConfig | None = None
    """The verifier's own sandbox; implies ``separate``."""
    collect: Annotated[tuple[CollectHookConfig, ...], Strict(False)] = ()
    """Commands run after the agent and before the verifier."""
    inputs: Any = None
    """Sidecar inputs; not supported by this runner."""


class StepConfig(Table):
    """One ``[[steps]]`` table (spec 3.5)."""

    name: StepName
    """Folder under ``steps/``."""
    agent: AgentConfig = Field(default_factory=AgentConfig)
    """What differs from ``[agent]``, key by key."""
    verifier: VerifierConfig = Field(default_factory=VerifierConfig)
    """What differs from ``[verifier]``."""
    healthcheck: HealthCheckConfig | None = None
    """Polled before the step's agent."""
    artifacts: Annotated[tuple[ArtifactConfig, ...], Strict(False)] = ()
    """Collected after the task's artifacts."""
    min_reward: MinReward | None = None
    """Reward below which the episode stops: a number for the key ``reward``, or a
    table with a number per key."""


class TaskConfig(Table):
    """A whole ``task.toml`` (spec 3.1)."""

    schema_version: str = "1.4"
    """Version of the format; not interpreted."""
    source: str | None = None
    """Where the task comes from."""
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    """How the steps' rewards become the episode's; ignored with a single step."""
    artifacts: Annotated[tuple[ArtifactConfig, ...], Strict(False)] = ()
    """Paths collected after every turn's agent."""
    task: TaskInfo | None = None
    """Package information."""
    metadata: MetadataConfig = Field(default_factory=MetadataConfig)
    """Free-form, with our own table in it."""
    solution: SolutionConfig = Field(default_factory=SolutionConfig)
    """For the oracle."""
    agent: AgentConfig = Field(default_factory=AgentConfig)
    """Agent settings of the task and of steps that have none."""
    verifier: VerifierConfig = Field(default_factory=VerifierConfig)
    """Verifier settings."""
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    """The agent's sandbox."""
    steps: Annotated[tuple[StepConfig, ...], Strict(False)] = ()
    """Steps in turn order; empty: a single-step task."""

    @property
    def pytest_harbor(self) -> PytestHarborConfig:
        """``[metadata.pytest_harbor]``."""
        return self.metadata.pytest_harbor

    @property
    def difficulty(self) -> str | None:
        """``[metadata].difficulty`` where it is a string."""
        value = self.metadata.difficulty
        return value if isinstance(value, str) else None

    @property
    def category(self) -> str | None:
        """``[metadata].category`` where it is a string."""
        value = self.metadata.category
        return value if isinstance(value, str) else None

    @property
    def tags(self) -> tuple[str, ...]:
        """The strings of ``[metadata].tags``."""
        value = self.metadata.tags
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list):
            return ()
        return tuple(tag for tag in value if isinstance(tag, str))
