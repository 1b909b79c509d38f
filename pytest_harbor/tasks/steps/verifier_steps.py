"""Steps that grade (spec 8, 10.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, Strict

from pytest_harbor.tasks.steps.criteria import (
    Criterion,
    RubricFormat,
    ScoreAggregator,
    meant_key,
)
from pytest_harbor.tasks.steps.step import (
    Fault,
    Name,
    NameKind,
    Step,
    repeated,
)
from pytest_harbor.tasks.steps.values import (
    Count,
    HttpUrl,
    Id,
    Ids,
    Seconds,
    Version,
)


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
    default_model_api_base: HttpUrl | None = None
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
        """Something to grade; keys of its own that look like a slip of the pen."""
        if not self.criteria:
            yield Fault("criteria", "is empty: the score is always 0")
        for number, criterion in enumerate(self.criteria):
            for key in criterion.model_extra or ():
                if meant := meant_key(key, criterion):
                    what = f"goes to the judge as it is (did you mean '{meant}'?)"
                    yield Fault(f"criteria[{number}].{key}", what)


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
