"""The steps of a task file (spec 4 to 10), one checked model per type.

Fields that the format has and this runner does not are ``unsupported``: they are
named in a warning and otherwise ignored.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Strict

from pytest_harbor.tasks.steps.criteria import Criterion, RubricFormat, ScoreAggregator
from pytest_harbor.tasks.steps.prompt_parts import Parts
from pytest_harbor.tasks.steps.sources import ArtifactRef, Url, urls_problem
from pytest_harbor.tasks.steps.step import Fault, Name, NameKind, Step
from pytest_harbor.tasks.steps.values import (
    Amount,
    Count,
    Id,
    Ids,
    OutputFormat,
    Record,
    SandboxPath,
    Seconds,
    SkillName,
    Strings,
    Variables,
    Version,
)

DEFAULT_AGENT_NAME = "default-agent"
DEFAULT_USER_NAME = "human_agent"


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


class LoadArtifact(Step):
    """``load_artifact``: puts data into an env or files into a sandbox (spec 5)."""

    type: Literal["load_artifact"] = "load_artifact"
    env_id: Id | None = None
    """Target: a deployed env."""
    agent_name: Id | None = None
    """Target: the sandbox of a deployed agent."""
    artifact_id: Id | None = None
    """Source: one artifact."""
    artifact_version: Version | None = None
    """Version of ``artifact_id``; unset: the newest."""
    artifacts: Annotated[tuple[ArtifactRef, ...], Strict(False)] = ()
    """Source: several artifacts, loaded in order."""
    artifact_from_step_id: Id | None = None
    """Source: what that step collected."""
    urls: Annotated[tuple[Url, ...], Strict(False)] = ()
    """Source: downloads."""
    destination_path: SandboxPath | None = None
    """Folder for files; unset: by artifact and target."""

    old_names: ClassVar[Mapping[str, str]] = {
        "collected_artifacts_step_id": "artifact_from_step_id"
    }
    unsupported = frozenset(
        {"container_name", "env_step_id", "sandbox_name", "snapshot_after_load"}
    )

    @property
    def sources(self) -> tuple[ArtifactRef, ...]:
        """The artifacts to load, however the file names them."""
        if self.artifact_id is None:
            return self.artifacts
        return (ArtifactRef(id=self.artifact_id, version=self.artifact_version),)

    def reads(self) -> Iterator[Name]:
        """The target, and the step whose files are handed on."""
        if self.env_id is not None:
            yield Name("env", self.env_id, "env_id")
        if self.agent_name is not None:
            yield Name("agent", self.agent_name, "agent_name")
        if self.artifact_from_step_id is not None:
            yield Name("files", self.artifact_from_step_id, "artifact_from_step_id")

    def faults(self) -> Iterator[Fault]:
        """One target, one kind of source."""
        if self.env_id is None and self.agent_name is None:
            yield Fault("", "has no target: give env_id or agent_name", is_lack=True)
        elif self.env_id is not None and self.agent_name is not None:
            yield Fault("", "has two targets: give either env_id or agent_name")
        yield from self._source_faults()
        if self.urls:
            if self.env_id is not None:
                yield Fault("urls", "are loaded into an agent: give agent_name")
            if problem := urls_problem(self.urls):
                yield Fault("urls", problem)

    def _source_faults(self) -> Iterator[Fault]:
        given = {
            "artifact_id": self.artifact_id is not None,
            "artifacts": bool(self.artifacts),
            "artifact_from_step_id": self.artifact_from_step_id is not None,
            "urls": bool(self.urls),
        }
        names = [name for name, is_given in given.items() if is_given]
        if not names:
            yield Fault(
                "",
                "has no source: give artifact_id, artifacts, artifact_from_step_id"
                " or urls",
                is_lack=True,
            )
        if given["artifact_from_step_id"] and len(names) > 1:
            others = " and ".join(n for n in names if n != "artifact_from_step_id")
            yield Fault(
                "artifact_from_step_id", f"cannot go with {others}; use a step for each"
            )
        if given["artifact_id"] and given["artifacts"]:
            yield Fault("artifact_id", "cannot go with artifacts; put it into the list")
        if self.artifact_version is not None and not given["artifact_id"]:
            yield Fault("artifact_version", "needs artifact_id", is_lack=True)


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


class PromptAgent(Step):
    """``prompt_agent``: sends a prompt and waits until the agent is done (spec 7)."""

    type: Literal["prompt_agent"] = "prompt_agent"
    prompt: str | None = None
    """The prompt as text."""
    parts: Parts = ()
    """The prompt as parts of an A2A message, as the file has them."""
    agent_name: Id = DEFAULT_AGENT_NAME
    """Whom to prompt."""
    prompt_id: Id | None = None
    """Name of the reply; unset: a random one."""
    timeout_seconds: Seconds = 600
    """Limit of one turn of the agent."""
    model: str | None = None
    """Model to ask the agent to use."""
    output_format: OutputFormat | None = None
    """Asks for a structured reply: ``{"type": "json_schema", "schema": {...}}``."""
    max_conversation_turns: Count = 1
    """Above 1 a conversation, of at most that many turns of the agent."""
    user_agent_name: Id = DEFAULT_USER_NAME
    """Deployed agent that plays the user."""
    user_a2a_url: Id | None = None
    """A person's A2A endpoint, instead."""
    system_prompt: str | None = None
    """Set on the agent before this prompt."""
    max_turns: Count | None = None
    """Limit of the agent's inner loop."""
    context_id: Id | None = None
    """A2A context to continue; unset: a new one."""
    poll_interval_seconds: Seconds = 2
    """Longest pause between two looks at the agent's task."""
    user_agent_timeout_seconds: Seconds = 600
    """Limit of one turn of the user."""
    user_output_format: OutputFormat | None = None
    """What the user answers, instead of ``{message, done}``."""
    user_model: str | None = None
    """Model to ask the user agent to use."""
    model_params: dict[str, Any] | None = None
    """Provider parameters, passed on."""
    effort: str | None = None
    """Reasoning setting, passed on."""
    max_thinking_tokens: Count | None = None
    """Reasoning setting, passed on."""

    unsupported = frozenset(
        {
            "agentenv_tools",
            "harness",
            "live_trajectory",
            "snapshot_config",
            "trajectory_output_prefix",
        }
    )
    written_kinds = frozenset[NameKind]({"prompt"})

    @property
    def is_conversation(self) -> bool:
        """True when the replies are answered by a user."""
        return self.max_conversation_turns > 1

    def reads(self) -> Iterator[Name]:
        """The agent, and the one that plays the user.

        Without a name in the file the user may also be the configured person.
        """
        yield Name("agent", self.agent_name, "agent_name")
        if (
            self.is_conversation
            and self.user_a2a_url is None
            and self.user_agent_name != DEFAULT_USER_NAME
        ):
            yield Name("agent", self.user_agent_name, "user_agent_name")

    def writes(self) -> Iterator[Name]:
        """The reply."""
        if self.prompt_id is not None:
            yield Name("prompt", self.prompt_id, "prompt_id")

    def faults(self) -> Iterator[Fault]:
        """Either a text or parts."""
        if self.prompt is None and not self.parts:
            yield Fault("", "has no prompt: give prompt or parts", is_lack=True)
        elif self.prompt is not None and self.parts:
            yield Fault("", "has two prompts: give either prompt or parts")


class RubricsVerifier(Step):
    """``rubrics_verifier``: a judge grades a reply against criteria (spec 8)."""

    type: Literal["rubrics_verifier"] = "rubrics_verifier"
    prompt_id: Id
    """The reply to grade."""
    criteria: Annotated[tuple[Criterion, ...], Strict(False)]
    """What it must fulfil."""
    verifier_id: Id | None = None
    """Key of the result; unset: a random one."""
    agent_name: Id | None = None
    """Deployed agent that judges; unset: one is deployed, and stopped afterwards."""
    use_agent_judge: bool = True
    """Whether an agent judges, or one call of a model."""
    judge_a2a_agent_id: Id | None = None
    """Agent to deploy as judge; unset: the run's default."""
    default_model: Id | None = None
    """The judge's model; unset: the run's."""
    use_trajectory: bool = True
    """Whether the judge sees the trajectory."""
    score_aggregator: ScoreAggregator = "all_pass"
    """How the rows become the score."""
    output_format: RubricFormat = "rubric_binary"
    """What the judge says of each criterion: met or not, or a share."""
    judge_timeout_seconds: Seconds = 1000
    """Limit of one call of the judge."""
    grading_policy_prompt: str | None = None
    """Rules to add to the judge's prompt."""
    context_facts_for_judge: dict[str, str] = Field(default_factory=dict)
    """Facts to show: a label and a path in the context's ``metadata``."""
    default_model_api_base: str | None = None
    """Endpoint of a model judge."""
    effort: str | None = None
    """Reasoning setting, passed on."""
    max_thinking_tokens: Count | None = None
    """Reasoning setting, passed on."""

    unsupported = frozenset(
        {
            "grade_up_to_turn",
            "judge_batch_concurrency",
            "judge_batch_size",
            "judge_priority",
            "judge_sandbox_type",
            "run_context_for_judge",
            "trajectory_filter",
        }
    )
    written_kinds = frozenset[NameKind]({"verifier"})

    def reads(self) -> Iterator[Name]:
        """The reply, and a named judge."""
        yield Name("prompt", self.prompt_id, "prompt_id")
        if self.agent_name is not None and self.use_agent_judge:
            yield Name("agent", self.agent_name, "agent_name")

    def writes(self) -> Iterator[Name]:
        """The grade."""
        if self.verifier_id is not None:
            yield Name("verifier", self.verifier_id, "verifier_id")

    def faults(self) -> Iterator[Fault]:
        """Criteria have an id of their own each."""
        for name in repeated([criterion.id for criterion in self.criteria]):
            yield Fault("criteria", f"two criteria have the id '{name}'")

    def doubts(self) -> Iterator[Fault]:
        """Something to grade."""
        if not self.criteria:
            yield Fault("criteria", "is empty: the score is always 0")


class CollectArtifacts(Step):
    """``collect_artifacts``: keeps files of an agent's sandbox (spec 9)."""

    type: Literal["collect_artifacts"] = "collect_artifacts"
    agent_name: Id = DEFAULT_AGENT_NAME
    """Whose sandbox."""
    base_path: SandboxPath = "/app/artifact"
    """Folder that relative names start from, without a ``/`` at its end."""
    artifact_paths: Strings = ()
    """Files to take; none: every file below ``base_path``."""
    artifacts_key: str = "expected_artifacts"
    """Seed key whose comma-separated value replaces ``artifact_paths``."""
    exclude_basenames: Strings = ()
    """File names to leave out when the folder is listed."""
    universe_id_suffix: str = ""
    """End of the universe's id; without need here, every step has its own."""

    unsupported = frozenset(
        {"container_name", "env_id", "manifest_step_id", "sandbox_name"}
    )
    written_kinds = frozenset[NameKind]({"files"})

    def reads(self) -> Iterator[Name]:
        """The agent."""
        yield Name("agent", self.agent_name, "agent_name")

    def writes(self) -> Iterator[Name]:
        """The files, by the step's own id."""
        yield Name("files", self.id, "id")

    def faults(self) -> Iterator[Fault]:
        """Relative names stay below ``base_path``."""
        for number, path in enumerate(self.artifact_paths):
            field = f"artifact_paths[{number}]"
            if not path:
                yield Fault(field, "must not be empty")
            elif not path.startswith("/") and is_outside(path):
                yield Fault(field, f"'{path}' leaves base_path")


class EnvOutcomeVerifier(Step):
    """``env_outcome_verifier``: the author's own check of an env (spec 10.1)."""

    type: Literal["env_outcome_verifier"] = "env_outcome_verifier"
    env_id: Id
    """The env to look at."""
    file_artifact_id: Id
    """File artifact: a Python file with ``verify(mcp_url)``."""
    file_artifact_version: Version | None = None
    """Its version; unset: the newest."""
    verifier_id: Id | None = None
    """Key of the result; unset: a random one."""
    score_aggregator: ScoreAggregator = "all_pass"
    """How the rows become the score."""
    prompt_id: Id | None = None
    """The reply that is handed to the check."""

    written_kinds = frozenset[NameKind]({"verifier"})

    def reads(self) -> Iterator[Name]:
        """The env, and the reply."""
        yield Name("env", self.env_id, "env_id")
        if self.prompt_id is not None:
            yield Name("prompt", self.prompt_id, "prompt_id")

    def writes(self) -> Iterator[Name]:
        """The grade."""
        if self.verifier_id is not None:
            yield Name("verifier", self.verifier_id, "verifier_id")


class AggregateVerifiers(Step):
    """``aggregate_verifiers``: one score over the rows of several verifiers."""

    type: Literal["aggregate_verifiers"] = "aggregate_verifiers"
    verifier_ids: Ids
    """Whose rows."""
    verifier_id: Id | None = None
    """Key of the result; unset: a random one."""
    score_aggregator: ScoreAggregator = "weighted_average"
    """How the rows become the score."""

    written_kinds = frozenset[NameKind]({"verifier"})

    def reads(self) -> Iterator[Name]:
        """The grades."""
        for number, name in enumerate(self.verifier_ids):
            yield Name("verifier", name, f"verifier_ids[{number}]")

    def writes(self) -> Iterator[Name]:
        """The grade of grades."""
        if self.verifier_id is not None:
            yield Name("verifier", self.verifier_id, "verifier_id")

    def faults(self) -> Iterator[Fault]:
        """At least one verifier."""
        if not self.verifier_ids:
            yield Fault("verifier_ids", "must name a verifier", is_lack=True)


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


def is_outside(path: str) -> bool:
    """True when a relative path leads out of the folder that it starts from."""
    return posixpath.normpath(path).split("/")[0] == ".."


def is_live_url(env_id: str) -> bool:
    """True when an entry of ``env_ids`` is the URL of a server that already runs."""
    return env_id.startswith(("http://", "https://"))


def repeated(names: list[str]) -> list[str]:
    """The names that are there more than once, in order."""
    return [name for name, count in Counter(names).items() if count > 1]


STEP_TYPES: Mapping[str, type[Step]] = {
    "deploy_env": DeployEnv,
    "load_artifact": LoadArtifact,
    "deploy_agent": DeployAgent,
    "prompt_agent": PromptAgent,
    "rubrics_verifier": RubricsVerifier,
    "collect_artifacts": CollectArtifacts,
    "env_outcome_verifier": EnvOutcomeVerifier,
    "aggregate_verifiers": AggregateVerifiers,
    "teardown_sandboxes": TeardownSandboxes,
}
