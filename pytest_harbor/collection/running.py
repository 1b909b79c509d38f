"""Run an episode for an item: plan, engine, records, reports, verdict."""

from __future__ import annotations

import os
import queue
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_harbor.collection import markers, progress
from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.items import Episode
from pytest_harbor.collection.judged import (
    Judged,
    interruption,
    settle,
    tell_time_limit,
    threshold,
)
from pytest_harbor.collection.live_steps import LiveSteps
from pytest_harbor.collection.places import run_places
from pytest_harbor.collection.private import skip_at_item
from pytest_harbor.collection.warnings import warn_of_item
from pytest_harbor.errors import CANCELLED, HarborError
from pytest_harbor.results import junit
from pytest_harbor.results.failure_text import failure_text, run_warnings
from pytest_harbor.results.records import Origin
from pytest_harbor.sandboxes.api import NOTE

if TYPE_CHECKING:
    from pytest_harbor.agents.api import Agent
    from pytest_harbor.collection.providers import Choice
    from pytest_harbor.episodes.result import EpisodeResult
    from pytest_harbor.events import Event
    from pytest_harbor.sandboxes.api import Provider
    from pytest_harbor.settings import Settings
    from pytest_harbor.tasks.folder.plan_types import EpisodePlan
    from pytest_harbor.tasks.folder.task import Task


@dataclass(frozen=True)
class Request:
    """Everything an episode is run from; each part comes from a fixture."""

    item: pytest.Item
    task: Task
    settings: Settings
    provider: Choice
    agent: Agent
    attempt: int


def run(request: Request) -> EpisodeResult:
    """Run the episode; gives its result when there is one to judge.

    Raises:
        pytest.fail.Exception: infrastructure, a refusal, a masked result.
        pytest.skip.Exception: nothing that could be run, and that is no failure.
    """
    item = request.item
    item.user_properties[:] = junit.without_ours(item.user_properties)
    try:
        result, judged = _run(request)
    except HarborError as error:
        sessions.of(item.config).record_broken(item, request.task.id, error.message)
        raise
    item.ihook.pytest_harbor_episode_finished(result=result, item=item)
    settle(item, judged)
    return result


def min_reward(request: Request) -> float:
    """The threshold of the item: that of its marker, of its task, of the run."""
    return threshold(
        markers.read(request.item).min_reward,
        request.task.config.pytest_harbor.min_reward,
        request.settings.min_reward,
    )


def agent_name(agent: Agent) -> str:
    """The name an agent goes by in records and reports."""
    return str(getattr(agent, "name", None) or type(agent).__name__)


def _run(request: Request) -> tuple[EpisodeResult, Judged]:
    from pytest_harbor.episodes.outcome import judge

    plan = make_plan(request)
    session = sessions.of(request.item.config)
    if request.settings.validate:
        _skip_unvalidated(plan)
    provider = session.providers.choose(
        request.provider, needs_container=plan.needs_container
    )
    must_miss = request.settings.validate and plan.agent == "nop"
    origin = Origin(
        node_id=request.item.nodeid,
        min_reward=min_reward(request),
        worker=session.worker,
        is_test=not isinstance(request.item, Episode),
        must_miss=must_miss,
        is_xfail=markers.expects_failure(request.item),
    )
    records, logs = run_places(session, plan.episode_id)
    records.started(
        origin=origin,
        task_id=plan.task_id,
        agent=plan.agent,
        attempt=plan.attempt,
        sandbox=provider.name,
    )
    root = request.item.config.rootpath
    steps = None
    if plan.is_multi_step and isinstance(request.item, Episode):
        steps = LiveSteps(request.item, plan, must_miss=must_miss)
    began = time.time()
    try:
        result = _in_loop(session, request, plan, provider, logs, steps=steps)
    except BaseException as error:
        # A time limit of the item, Ctrl-C, a hook that raised: nobody graded it.
        ended = _cancelled(plan, provider, logs, error, began=began)
        verdict = judge(ended, threshold=origin.min_reward)
        records.finished(ended, verdict, origin=origin)
        text = failure_text(ended, verdict, root=root)
        tell_time_limit(error, text, debug=request.settings.debug)
        raise
    verdict = judge(result, threshold=origin.min_reward, must_miss=must_miss)
    if result.status == "unavailable" and request.settings.unavailable == "skip":
        verdict = replace(verdict, outcome="skipped")
    records.finished(result, verdict, origin=origin)
    if steps is not None:
        steps.settle(verdict.steps)
    request.item.user_properties += junit.properties(
        result, min_reward=origin.min_reward, root=root
    )
    if verdict.outcome == "passed":  # else its text has them
        for line in run_warnings(result, plan.warnings):
            if not line.startswith(NOTE):
                warn_of_item(request.item, line)
    text = failure_text(result, verdict, root=root, told=plan.warnings)
    return result, Judged(verdict, text)


def make_plan(request: Request) -> EpisodePlan:
    """The plan of the item's episode."""
    from pytest_harbor.tasks.folder.mcp import merged
    from pytest_harbor.tasks.folder.plan import plan_episode

    plan = plan_episode(
        request.task,
        request.settings,
        agent=agent_name(request.agent),
        attempt=request.attempt,
    )
    if plan.agent in {"nop", "oracle"}:
        return plan
    config = sessions.of(request.item.config).agent_config
    return replace(
        plan,
        mcp_servers=merged((*plan.mcp_servers, *config.mcp_servers)),
        skills=config.skills,
    )


def _in_loop(
    session: sessions.HarborSession,
    request: Request,
    plan: EpisodePlan,
    provider: Provider,
    logs: Path,
    *,
    steps: LiveSteps | None,
) -> EpisodeResult:
    """Run the engine in its loop and its events through the hooks, here."""
    from pytest_harbor.episodes.episode import run as run_engine

    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
    item = request.item

    def receive(event: Event) -> None:
        item.ihook.pytest_harbor_event(event=event, item=item)
        if steps is not None:
            steps.see(event)
        progress.show(item, event, has_steps=steps is not None)

    session.interrupts.arm()
    call = partial(
        run_engine,
        plan,
        provider,
        request.agent,
        inbox.put,
        logs=logs,
        keep=request.settings.keep,
        environ=dict(os.environ),
        debug=request.settings.debug,
    )
    try:
        return session.bridge.run(call, inbox=inbox, receive=receive)
    except pytest.fail.Exception as error:  # the item's time limit, by a signal
        if steps is not None:
            steps.interrupted(str(error))
        raise


def _cancelled(
    plan: EpisodePlan,
    provider: Provider,
    logs: Path,
    error: BaseException,
    *,
    began: float,
) -> EpisodeResult:
    from pytest_harbor.episodes.result import EpisodeResult

    what = interruption(error)
    return EpisodeResult(
        task_id=plan.task_id,
        agent=plan.agent,
        model=plan.model,
        attempt=plan.attempt,
        status="cancelled",
        declared_steps=tuple(turn.name for turn in plan.turns),
        digest=plan.digest,
        failure_kind=CANCELLED,
        failure_reason=f"interrupted: {what}" if what else "interrupted",
        sandbox=provider.name,
        started_at=began,
        seconds=time.time() - began,
        logs=logs,
        is_multi_step=plan.is_multi_step,
    )


def _skip_unvalidated(plan: EpisodePlan) -> None:
    if plan.agent != "oracle":
        return
    without = [
        turn.name
        for turn in plan.turns
        if not turn.has_solve_script and turn.reference_answer is None
    ]
    if not without:
        return
    steps = f" for {', '.join(without)}" if plan.is_multi_step else ""
    raise skip_at_item(f"unvalidated: no solution/solve.sh or answer.md{steps}")
