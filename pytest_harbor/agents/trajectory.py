"""Trajectories: what an agent did, in ATIF v1.7.

The Agent Trajectory Interchange Format is one JSON document: who the agent was, and
its steps in order. A step is what the system said, what the user said, or one answer
of the model with its tool calls, what came of them, and what the answer cost. The
engine writes it to ``/logs/agent/trajectory.json`` before the verifier runs (spec 2).

Documents of v1.0 to v1.6 are read as well; v1.7 only added to them. What is built here
is v1.7. Field names and rules are the format's own, so that other tools read ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from pytest_harbor.errors import TrajectoryError

SCHEMA_VERSION: Final = "ATIF-v1.7"

Version: TypeAlias = Literal[
    "ATIF-v1.0",
    "ATIF-v1.1",
    "ATIF-v1.2",
    "ATIF-v1.3",
    "ATIF-v1.4",
    "ATIF-v1.5",
    "ATIF-v1.6",
    "ATIF-v1.7",
]
Source: TypeAlias = Literal["system", "user", "agent"]
Extra: TypeAlias = dict[str, Any] | None

_OF_THE_AGENT: Final = (
    "model_name",
    "reasoning_effort",
    "reasoning_content",
    "tool_calls",
    "metrics",
)
"""Fields of a step that only an agent's step may have."""


def _iso_8601(text: str) -> str:
    datetime.fromisoformat(text.replace("Z", "+00:00"))
    return text


Timestamp: TypeAlias = Annotated[str, AfterValidator(_iso_8601)]


class _Part(BaseModel):
    """Base of every object: frozen, and nothing that the format does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class ImageSource(_Part):
    """Where an image is."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    """Its MIME type."""
    path: str
    """A path, relative or absolute, or a URL."""


class ContentPart(_Part):
    """One part of a message that is not text alone."""

    type: Literal["text", "image"]
    """Which of the two other fields is set."""
    text: str | None = None
    """The text."""
    source: ImageSource | None = None
    """The image."""

    @model_validator(mode="after")
    def _has_what_its_type_says(self) -> ContentPart:
        wanted, other = ("text", "source")
        if self.type == "image":
            wanted, other = other, wanted
        if getattr(self, wanted) is None or getattr(self, other) is not None:
            raise ValueError(f"a part of type {self.type!r} has {wanted!r}, only that")
        return self


Content: TypeAlias = str | list[ContentPart]


class ToolCall(_Part):
    """A tool that the model called."""

    tool_call_id: str
    """Names the call within its step; results refer to it."""
    function_name: str
    """The tool."""
    arguments: dict[str, Any]
    """What it was called with; may be empty."""
    extra: Extra = None
    """Anything else about the call."""


class SubagentTrajectoryRef(_Part):
    """Where the trajectory of an agent that was called is."""

    trajectory_id: str | None = None
    """An entry of the document's ``subagent_trajectories``."""
    session_id: str | None = None
    """The run it belongs to; for people, never a key."""
    trajectory_path: str | None = None
    """A file or URL of its own."""
    extra: Extra = None
    """Anything else about it."""

    @model_validator(mode="after")
    def _can_be_found(self) -> SubagentTrajectoryRef:
        if self.trajectory_id is None and self.trajectory_path is None:
            raise ValueError("needs a trajectory_id or a trajectory_path")
        return self


class ObservationResult(_Part):
    """What came of one tool call, or of something that was none."""

    source_call_id: str | None = None
    """The ``tool_call_id`` it answers; unset for what was no tool call."""
    content: Content | None = None
    """The output."""
    subagent_trajectory_ref: list[SubagentTrajectoryRef] | None = None
    """Agents that did the work."""
    extra: Extra = None
    """Anything else about it."""


class Observation(_Part):
    """What the agent got to see after a step."""

    results: list[ObservationResult]
    """One entry per tool call or event."""


class Metrics(_Part):
    """What one answer of the model used."""

    prompt_tokens: int | None = None
    """Tokens sent, those from a cache included."""
    completion_tokens: int | None = None
    """Tokens generated, reasoning and tool calls included."""
    cached_tokens: int | None = None
    """Those of ``prompt_tokens`` that came from a cache."""
    cost_usd: float | None = None
    """What the call cost, in US dollars."""
    prompt_token_ids: list[int] | None = None
    """The tokens themselves."""
    completion_token_ids: list[int] | None = None
    """The tokens themselves."""
    logprobs: list[float] | None = None
    """The log probability of each generated token."""
    extra: Extra = None
    """Other measures."""


class FinalMetrics(_Part):
    """What the whole trajectory used."""

    total_prompt_tokens: int | None = None
    """Tokens sent, those from a cache included."""
    total_completion_tokens: int | None = None
    """Tokens generated."""
    total_cached_tokens: int | None = None
    """Those of the tokens sent that came from a cache."""
    total_cost_usd: float | None = None
    """The cost in US dollars, that of called agents included."""
    total_steps: Annotated[int, Field(ge=0)] | None = None
    """Number of steps."""
    extra: Extra = None
    """Other measures."""


class Step(_Part):
    """What the system said, what the user said, or one turn of the agent."""

    step_id: Annotated[int, Field(ge=1)]
    """Its place, from 1, without gaps."""
    timestamp: Timestamp | None = None
    """When, in ISO 8601."""
    source: Source
    """Who."""
    model_name: str | None = None
    """The model, where it is not the trajectory's."""
    reasoning_effort: str | float | None = None
    """How hard the model was asked to think."""
    message: Content
    """What was said; may be empty."""
    reasoning_content: str | None = None
    """What the model thought, as far as it said so."""
    tool_calls: list[ToolCall] | None = None
    """The tools that it called."""
    observation: Observation | None = None
    """What it got to see."""
    metrics: Metrics | None = None
    """What it used."""
    is_copied_context: bool | None = None
    """True for a step of an earlier trajectory, repeated here as context."""
    llm_call_count: Annotated[int, Field(ge=0)] | None = None
    """Answers of a model in this step; 0 when no model was asked."""
    extra: Extra = None
    """Anything else about the step."""

    @model_validator(mode="after")
    def _has_what_its_source_may_have(self) -> Step:
        if self.source != "agent":
            self._refuse(_OF_THE_AGENT, f"a step of source {self.source!r}")
        elif self.llm_call_count == 0:
            self._refuse(("metrics", "reasoning_content"), "a step that asked no model")
        return self

    def _refuse(self, names: Sequence[str], what: str) -> None:
        if found := [name for name in names if getattr(self, name) is not None]:
            raise ValueError(f"{what} has no {' and no '.join(found)}")

    @model_validator(mode="after")
    def _results_answer_its_calls(self) -> Step:
        calls = {call.tool_call_id for call in self.tool_calls or ()}
        for result in self.observation.results if self.observation else ():
            if result.source_call_id not in {None, *calls}:
                raise ValueError(
                    f"a result answers {result.source_call_id!r}, which is no tool "
                    "call of this step"
                )
        return self


class AgentInfo(_Part):
    """Which agent it was."""

    name: str
    """The agent, ``claude-code``."""
    version: str
    """Its version; ``unknown`` where it does not say."""
    model_name: str | None = None
    """The model, where a step does not name another."""
    tool_definitions: list[dict[str, Any]] | None = None
    """The tools it was offered, as OpenAI's function calling describes them."""
    extra: Extra = None
    """Anything else about it."""


class Trajectory(_Part):
    """A whole trajectory: the document."""

    schema_version: Version = SCHEMA_VERSION
    """The version of the format."""
    session_id: str | None = None
    """The agent's name for the session; several documents may share it."""
    trajectory_id: str | None = None
    """Names this document; needed by one inside another."""
    agent: AgentInfo
    """Which agent it was."""
    steps: Annotated[list[Step], Field(min_length=1)]
    """What happened, in order."""
    notes: str | None = None
    """Remarks for people."""
    final_metrics: FinalMetrics | None = None
    """What all of it used."""
    continued_trajectory_ref: str | None = None
    """The document in which it goes on."""
    extra: Extra = None
    """Anything else."""
    subagent_trajectories: list[Trajectory] | None = None
    """Trajectories of agents that this one called."""

    @model_validator(mode="after")
    def _numbers_its_steps(self) -> Trajectory:
        for expected, step in enumerate(self.steps, start=1):
            if step.step_id != expected:
                raise ValueError(
                    f"steps[{expected - 1}].step_id is {step.step_id}, expected "
                    f"{expected}: steps are numbered from 1 without gaps"
                )
        return self

    @model_validator(mode="after")
    def _names_the_trajectories_inside(self) -> Trajectory:
        seen: set[str] = set()
        for index, inner in enumerate(self.subagent_trajectories or ()):
            where = f"subagent_trajectories[{index}].trajectory_id"
            if inner.trajectory_id is None:
                raise ValueError(f"{where} is missing")
            if inner.trajectory_id in seen:
                raise ValueError(f"{where}: {inner.trajectory_id!r} is used twice")
            seen.add(inner.trajectory_id)
        return self

    def to_json(self) -> dict[str, Any]:
        """The document as plain data; what is unset is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_text(self) -> str:
        """The document as JSON text in ASCII, so that any byte an agent printed fits."""
        return json.dumps(self.to_json(), indent=1) + "\n"


def read_trajectory(document: str | bytes | Mapping[str, Any]) -> Trajectory:
    """Read a document of ATIF v1.0 to v1.7, JSON text or plain data.

    Raises:
        TrajectoryError: every problem, one a line, each with its place
            (``steps[1].message: Field required``).
    """
    try:
        if isinstance(document, (str, bytes)):
            return Trajectory.model_validate_json(document)
        return Trajectory.model_validate(dict(document))
    except ValidationError as error:
        raise TrajectoryError("\n".join(_problems(error))) from error


def _problems(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_context=False):
        place = ""
        for part in problem["loc"]:
            place += f"[{part}]" if isinstance(part, int) else f".{part}"
        message = problem["msg"].removeprefix("Value error, ")
        yield f"{place.lstrip('.')}: {message}" if place else message
