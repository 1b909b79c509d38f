"""Steps of a trajectory in the making, and the result of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_harbor.agents.api import AgentResult
from pytest_harbor.agents.catalogue.events import as_cost, at
from pytest_harbor.agents.command.declaration import CommandRun
from pytest_harbor.agents.trajectory import (
    AgentInfo,
    FinalMetrics,
    Metrics,
    Observation,
    ObservationResult,
    Source,
    Step,
    SubagentTrajectoryRef,
    ToolCall,
    Trajectory,
)
from pytest_harbor.agents.trajectory_totals import final_metrics, totals

_VERSION: Final = re.compile(r"\d+(?:\.\d+)+\S*")


@dataclass
class StepDraft:
    """One step that grows while a log is read."""

    source: Source
    text: str = ""
    reasoning: str = ""
    timestamp: str | None = None
    model: str | None = None
    metrics: Metrics | None = None
    calls: list[ToolCall] = field(default_factory=list)
    results: list[ObservationResult] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Add a paragraph to what is said."""
        self.text = f"{self.text}\n{text}" if self.text else text

    def think(self, text: str) -> None:
        """Add a paragraph to what is thought."""
        self.reasoning = f"{self.reasoning}\n{text}" if self.reasoning else text

    def call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Call a tool."""
        self.calls.append(
            ToolCall(
                tool_call_id=call_id,
                function_name=name or "unknown",
                arguments=dict(arguments),
            )
        )

    def finish(self, number: int) -> Step:
        """The step, numbered."""
        return Step(
            step_id=number,
            source=self.source,
            timestamp=self.timestamp,
            model_name=self.model,
            message=self.text,
            reasoning_content=self.reasoning or None,
            tool_calls=self.calls or None,
            observation=Observation(results=self.results) if self.results else None,
            metrics=self.metrics,
        )


class Steps:
    """The steps of one trajectory, in order."""

    def __init__(self) -> None:
        self.drafts: list[StepDraft] = []

    def user(self, text: str, timestamp: str | None = None) -> None:
        """Add what the user said."""
        self.drafts.append(StepDraft("user", text, timestamp=timestamp))

    def system(self, text: str) -> None:
        """Add what the system said."""
        self.drafts.append(StepDraft("system", text))

    def agent(self, **fields: Any) -> StepDraft:
        """Add an answer of the model."""
        draft = StepDraft("agent", **fields)
        self.drafts.append(draft)
        return draft

    @property
    def current(self) -> StepDraft:
        """The last answer of the model; a new one where somebody else spoke last."""
        if self.drafts and self.drafts[-1].source == "agent":
            return self.drafts[-1]
        return self.agent()

    def result(
        self,
        call_id: str | None,
        content: str,
        *,
        extra: dict[str, Any] | None = None,
        subagent: str | None = None,
    ) -> None:
        """Add what came of a call, to the step that made it."""
        place = next(
            (
                draft
                for draft in reversed(self.drafts)
                if any(call.tool_call_id == call_id for call in draft.calls)
            ),
            None,
        )
        if place is None:
            # An answer to a call that nobody saw: kept, without the name of the call.
            place, call_id = self.current, None
        reference = SubagentTrajectoryRef(trajectory_id=subagent) if subagent else None
        place.results.append(
            ObservationResult(
                source_call_id=call_id,
                content=content,
                subagent_trajectory_ref=[reference] if reference else None,
                extra=extra,
            )
        )

    def unsay(self, text: str) -> None:
        """Take away a last answer that is not the model's, but the CLI's own error."""
        if text and self.drafts and self.drafts[-1].text == text:
            self.drafts.pop()

    def finish(self) -> list[Step]:
        """The steps; drafts in which nothing happened are left out."""
        kept = [
            draft
            for draft in self.drafts
            if draft.text or draft.reasoning or draft.calls or draft.results
        ]
        return [draft.finish(number) for number, draft in enumerate(kept, start=1)]

    @property
    def last_words(self) -> str | None:
        """The last thing that the agent said."""
        texts = (draft.text for draft in self.drafts if draft.source == "agent")
        return ([None] + [text for text in texts if text])[-1]


def since(
    final: FinalMetrics, earlier: Sequence[Mapping[str, Any]]
) -> FinalMetrics | None:
    """Totals of a turn, of ``final`` ones that a CLI adds up over its session.

    ``None`` when they are less than what ``earlier`` turns used: then they are no such totals.
    """
    changes: dict[str, float] = {}
    for name in _TOTALS:
        total = getattr(final, name)
        before = sum(as_cost(at(turn, "final_metrics", name)) or 0 for turn in earlier)
        if total is None:
            continue
        if total < before:
            return None
        rest = total - before
        changes[name] = round(rest, 9) if name == "total_cost_usd" else int(rest)
    return final.model_copy(update=changes)


_TOTALS: Final = (
    "total_prompt_tokens",
    "total_completion_tokens",
    "total_cached_tokens",
    "total_cost_usd",
)


def version_of(run: CommandRun) -> str:
    """The version alone, of what a CLI prints about it (``codex-cli 0.171.0``)."""
    found = _VERSION.search(run.version or "")
    return found[0] if found else run.version or "unknown"


def result_of(
    run: CommandRun,
    name: str,
    steps: Steps,
    *,
    text: str | None = None,
    session: str | None = None,
    model: str | None = None,
    final: FinalMetrics | None = None,
    subagents: list[Trajectory] | None = None,
) -> AgentResult:
    """What a run gave: its steps as a trajectory, its last words, tokens and cost.

    The instruction comes first, unless the log has told it.
    """
    if not any(draft.source == "user" for draft in steps.drafts):
        place = sum(draft.source == "system" for draft in steps.drafts[:1])
        steps.drafts.insert(place, StepDraft("user", run.instruction))
    finished = steps.finish()
    if not any(step.source == "agent" for step in finished):
        return AgentResult(text=text)
    trajectory = Trajectory(
        session_id=session or run.session or None,
        agent=AgentInfo(
            name=name, version=version_of(run), model_name=model or run.model
        ),
        steps=finished,
        final_metrics=(final or final_metrics(finished)).model_copy(
            update={"total_steps": len(finished)}
        ),
        subagent_trajectories=subagents or None,
    )
    numbers = totals(trajectory)
    return AgentResult(
        text=text or steps.last_words,
        trajectory=trajectory.to_json(),
        input_tokens=numbers.input_tokens,
        output_tokens=numbers.output_tokens,
        cost_usd=numbers.cost_usd,
    )
