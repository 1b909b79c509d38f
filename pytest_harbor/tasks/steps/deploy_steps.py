"""Steps that start and stop envs and agents (spec 4, 6, 10.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from pytest_harbor.tasks.steps.step import (
    DEFAULT_AGENT_NAME,
    Fault,
    Name,
    NameKind,
    Step,
    repeated,
)
from pytest_harbor.tasks.steps.values import (
    Amount,
    Count,
    Id,
    Ids,
    Record,
    Seconds,
    SkillName,
    Strings,
    Variables,
    Version,
)


class DeployEnv(Step):
    """``deploy_env``: starts an env as a new instance (spec 4)."""

    type: Literal["deploy_env"] = "deploy_env"
    env_id: Id
    """Env of the bundle; also the name of the instance in the run."""
    env_version: Version | None = None
    """Version to deploy; unset: the newest."""
    ttl_seconds: Seconds = 7200
    """Lifetime of the instance."""
    cpu: Amount | None = None
    """Number of CPUs; unset: the provider's default."""
    memory_mb: Count | None = None
    """Memory in MiB; unset: the provider's default."""
    disk_size_gb: Amount = 10
    """Disk in GiB."""
    sandbox_type: Id | None = None
    """Sandbox provider; unset: the run's."""
    gateway_mode: Literal["performance", "consistent"] = "performance"
    """Setting of a gateway; accepted, without meaning here."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Free annotations."""

    unsupported = frozenset(
        {
            "artifact_id",
            "artifact_version",
            "env_state_instance_id",
            "env_state_type",
            "priority",
        }
    )
    written_kinds = frozenset[NameKind]({"env"})

    def writes(self) -> Iterator[Name]:
        """The instance, by the env's id."""
        yield Name("env", self.env_id, "env_id")


class Skill(Record):
    """One of a ``deploy_agent``'s ``skills``; in a file also the name of a bundle's."""

    name: SkillName
    """Letters, digits, ``.``, ``_`` and ``-``; at most 128."""
    description: str = ""
    """What the skill is for."""
    skill_md: str | None = None
    """Text of its ``SKILL.md``."""
    object_url: str | None = None
    """Where that text is, instead."""


class NetworkPolicy(Record):
    """A ``deploy_agent``'s ``network_policy``: what its sandbox may reach."""

    mode: Literal["allow_all", "allowlist"] = "allow_all"
    """Everything, or what the two lists name."""
    allow_hosts: Strings = ()
    """Host names."""
    allow_cidrs: Strings = ()
    """Address ranges."""


class DeployAgent(Step):
    """``deploy_agent``: starts an A2A agent in a sandbox of its own (spec 6)."""

    type: Literal["deploy_agent"] = "deploy_agent"
    a2a_agent_id: Id | None = None
    """Agent of the bundle, or a registered one; unset: the run's default agent."""
    a2a_agent_version: Version | None = None
    """Version to deploy; unset: the newest."""
    agent_name: Id = DEFAULT_AGENT_NAME
    """Its name in the run."""
    env_ids: Ids = ()
    """Envs whose tools it gets: deployed ones, or URLs of live MCP servers."""
    skills: Annotated[tuple[Skill, ...], Strict(False)] = ()
    """Skills to register; a file may also name skills of the bundle."""
    system_prompt: str | None = None
    """Set on the agent."""
    env_vars: Variables = Field(default_factory=dict)
    """Environment of its process."""
    role: str | None = None
    """The agent's role, for its identity; not sent to envs."""
    sandbox_type: Id | None = None
    """Sandbox provider; unset: the run's."""
    ttl_seconds: Seconds = 7200
    """Lifetime."""
    cpu: Amount = 1
    """Number of CPUs."""
    memory_mb: Count = 8192
    """Memory in MiB."""
    disk_size_gb: Amount = 10
    """Disk in GiB."""
    agent_description: str | None = None
    """Description for its card."""
    network_policy: NetworkPolicy | None = None
    """What its sandbox may reach."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Free annotations."""

    unsupported = frozenset(
        {
            "agent_changelog_object_url",
            "agent_changelog_toolcall_position_exclusive",
            "agent_snapshot_files_artifact_id",
            "agent_snapshot_files_artifact_version",
            "agent_snapshot_target_context_id",
            "enable_agent_changelog",
            "enable_docker",
            "env_step_id",
            "litellm_base_url",
            "priority",
            "sandbox_name",
        }
    )
    written_kinds = frozenset[NameKind]({"agent"})

    def reads(self) -> Iterator[Name]:
        """The envs; a URL names a server that already runs."""
        for number, env_id in enumerate(self.env_ids):
            if not is_live_url(env_id):
                yield Name("env", env_id, f"env_ids[{number}]")

    def writes(self) -> Iterator[Name]:
        """The agent, by its name in the run."""
        yield Name("agent", self.agent_name, "agent_name")

    def faults(self) -> Iterator[Fault]:
        """A skill has its text, or says where it is; once."""
        for number, skill in enumerate(self.skills):
            if (skill.skill_md is None) == (skill.object_url is None):
                yield Fault(
                    f"skills[{number}]",
                    "needs either skill_md or object_url",
                    is_lack=skill.skill_md is None,
                )
        for field, names in (
            ("skills", [skill.name for skill in self.skills]),
            ("env_ids", list(self.env_ids)),
        ):
            for name in repeated(names):
                yield Fault(field, f"'{name}' is there twice")

    def doubts(self) -> Iterator[Fault]:
        """Half of what a role is for."""
        if self.role is not None:
            yield Fault("role", "is not sent to envs (not supported by pytest-harbor)")


class TeardownSandboxes(Step):
    """``teardown_sandboxes``: stops what a run deployed, before its end (spec 10.2)."""

    type: Literal["teardown_sandboxes"] = "teardown_sandboxes"
    fail_task_on_error: bool = False
    """Always false: a sandbox that does not stop is a warning."""
    agent_names: Ids = ()
    """Agents to stop."""
    env_ids: Ids = ()
    """Envs to stop."""
    sandbox_names: Ids = ()
    """Bare sandboxes to stop."""

    def faults(self) -> Iterator[Fault]:
        """Something to stop; never fatal."""
        if self.fail_task_on_error:
            yield Fault("fail_task_on_error", "cannot be true for this type; remove it")
        if not (self.agent_names or self.env_ids or self.sandbox_names):
            yield Fault(
                "",
                "stops nothing: give agent_names, env_ids or sandbox_names",
                is_lack=True,
            )


def is_live_url(env_id: str) -> bool:
    """True when an entry of ``env_ids`` is the URL of a server that already runs."""
    return env_id.startswith(("http://", "https://"))
