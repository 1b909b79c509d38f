"""``stream-json``, the log format of Claude Code, which other CLIs print, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pytest_harbor.agents.api import AgentResult
from pytest_harbor.agents.catalogue.events import (
    Event,
    as_arguments,
    as_cost,
    as_count,
    as_list,
    as_object,
    as_text,
    as_time,
    at,
    joined_text,
    shown,
)
from pytest_harbor.agents.catalogue.steps import (
    StepDraft,
    Steps,
    result_of,
    since,
    version_of,
)
from pytest_harbor.agents.command.declaration import CommandRun
from pytest_harbor.agents.trajectory import AgentInfo, FinalMetrics, Metrics, Trajectory
from pytest_harbor.agents.trajectory_totals import add_known

_USAGE: Final = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
)
_MODEL_USAGE: Final = (
    "inputTokens",
    "cacheReadInputTokens",
    "cacheCreationInputTokens",
    "outputTokens",
)


def usage_metrics(
    usage: object, *, cached_apart: bool, knows_output: bool = True
) -> Metrics | None:
    """The metrics of one answer.

    ``cached_apart``: tokens of the cache are not among ``input_tokens``, as Anthropic counts.
    """
    given = as_count(at(usage, "input_tokens"))
    if given is None:
        return None
    cached = as_count(at(usage, "cache_read_input_tokens"))
    written = as_count(at(usage, "cache_creation_input_tokens"))
    prompt = given + (cached or 0) + (written or 0) if cached_apart else given
    output = as_count(at(usage, "output_tokens")) if knows_output else None
    if not prompt and not output:
        return None
    return Metrics(
        prompt_tokens=prompt,
        completion_tokens=output,
        cached_tokens=cached,
        extra={"cache_creation_input_tokens": written} if written else None,
    )


@dataclass
class StreamReader:
    """Reads ``stream-json``, which Qwen Code prints in the same shape.

    ``usage_of`` are the true metrics of answers by the message's id, from elsewhere: Claude
    Code prints an answer before it knows how long it gets.
    """

    cached_apart: bool
    usage_of: Mapping[str, Metrics] | None = None
    steps: Steps = field(default_factory=Steps)
    inner: dict[str, Steps] = field(default_factory=dict)
    """Steps of called agents, by the tool call that called them."""
    session: str | None = None
    model: str | None = None
    end: Event = field(default_factory=dict)
    """The ``result`` event."""
    retry: Event = field(default_factory=dict)
    """The last ``api_retry`` event that no answer followed."""
    error_of: Callable[[Event], str] | None = None
    """What a failed run's ``result`` event says, where the CLI says it as an answer, too."""
    _answers: dict[str, StepDraft] = field(default_factory=dict)

    def read(self, events: Iterable[Event]) -> StreamReader:
        """Read a log."""
        for event in events:
            kind = event.get("type")
            parent = as_text(event.get("parent_tool_use_id"))
            steps = self.inner.setdefault(parent, Steps()) if parent else self.steps
            if kind == "assistant":
                self.retry = {}
                self._answer(steps, as_object(event.get("message")))
            elif kind == "user":
                self._user(steps, event, is_inner=bool(parent))
            elif kind == "result":
                self.end = event
            elif kind == "system" and event.get("subtype") == "init":
                self.session = as_text(event.get("session_id")) or self.session
                self.model = as_text(event.get("model")) or self.model
            elif kind == "system" and event.get("subtype") == "api_retry":
                self.retry = event
        return self

    def _answer(self, steps: Steps, message: Event) -> None:
        if message.get("model") == "<synthetic>":  # the CLI's own words about an error
            return
        identity = as_text(message.get("id"))
        draft = self._answers.get(identity)
        if draft is None:
            metrics = self._metrics(identity, message.get("usage"))
            draft = _unfinished(steps) or steps.agent()
            draft.metrics = metrics
            model = as_text(message.get("model"))
            draft.model = model if model and model != self.model else None
            if identity:
                self._answers[identity] = draft
        for part in as_list(message.get("content")):
            kind = at(part, "type")
            if kind == "text":
                draft.say(as_text(at(part, "text")))
            elif kind == "thinking":
                draft.think(as_text(at(part, "thinking")))
            elif kind == "tool_use":
                draft.call(
                    as_text(at(part, "id")),
                    as_text(at(part, "name")),
                    as_arguments(at(part, "input")),
                )

    def _metrics(self, identity: str, usage: object) -> Metrics | None:
        if self.usage_of is not None and identity in self.usage_of:
            return self.usage_of[identity]
        return usage_metrics(
            usage,
            cached_apart=self.cached_apart,
            knows_output=self.usage_of is None,
        )

    def _user(self, steps: Steps, event: Event, *, is_inner: bool) -> None:
        content = at(event, "message", "content")
        time = as_time(event.get("timestamp"))
        texts = []
        for part in as_list(content):
            if at(part, "type") == "tool_result":
                call = as_text(at(part, "tool_use_id"))
                said = at(part, "content")
                text = joined_text(said) or ("" if said == [] else shown(said))
                failed = {"is_error": True} if at(part, "is_error") is True else None
                inner = call if call in self.inner else None
                steps.result(call, text, extra=failed, subagent=inner)
            elif at(part, "type") == "text":
                texts.append(as_text(at(part, "text")))
        text = content if isinstance(content, str) else "\n".join(texts)
        if text and is_inner:
            steps.user(text, time)

    def final_metrics(self, earlier: Sequence[Event]) -> FinalMetrics | None:
        """What the ``result`` event says of the whole turn, called agents included.

        ``modelUsage`` has what they used, and in some versions what the session's earlier
        turns did, too, as has the cost. ``usage`` is about the turn, without called agents.
        """
        models = as_object(self.end.get("modelUsage")).values()
        found = self._totals([as_object(used) for used in models], _MODEL_USAGE)
        if found is None:
            return None
        found = found.model_copy(
            update={"total_cost_usd": as_cost(self.end.get("total_cost_usd"))}
        )
        turn = since(found, earlier)
        own = self._totals([as_object(self.end.get("usage"))], _USAGE)
        least = (own.total_prompt_tokens if own is not None else None) or 0
        if turn is None or (turn.total_prompt_tokens or 0) < least:
            return found
        return turn

    def _totals(
        self, usages: Sequence[Event], names: Sequence[str]
    ) -> FinalMetrics | None:
        given, cached, written, output = (
            add_known(as_count(usage.get(name)) for usage in usages) for name in names
        )
        if given is None and output is None:
            return None
        apart = (cached or 0) + (written or 0) if self.cached_apart else 0
        return FinalMetrics(
            total_prompt_tokens=(given or 0) + apart,
            total_completion_tokens=output,
            total_cached_tokens=cached,
        )

    def result(self, run: CommandRun, name: str) -> AgentResult:
        """What the run gave."""
        is_error = self.end.get("is_error") is True
        if is_error and self.error_of is not None:
            self.steps.unsay(self.error_of(self.end))
        told = as_text(self.end.get("result"))
        info = AgentInfo(name=name, version=version_of(run), model_name=self.model)
        subagents = [
            Trajectory(
                trajectory_id=call, session_id=self.session, agent=info, steps=found
            )
            for call, steps in self.inner.items()
            if (found := steps.finish())
        ]
        kept = {inner.trajectory_id for inner in subagents}
        for draft in self.steps.drafts:
            draft.results = [
                result
                if result.subagent_trajectory_ref is None
                or result.subagent_trajectory_ref[0].trajectory_id in kept
                else result.model_copy(update={"subagent_trajectory_ref": None})
                for result in draft.results
            ]
        return result_of(
            run,
            name,
            self.steps,
            text=None if is_error else told or None,
            session=self.session,
            model=self.model,
            final=self.final_metrics(run.earlier),
            subagents=subagents,
        )


def _unfinished(steps: Steps) -> StepDraft | None:
    """An answer whose first part came without usage: what follows is the rest of it."""
    last = steps.drafts[-1] if steps.drafts else None
    if last is None or last.source != "agent" or last.metrics or last.calls:
        return None
    return last
