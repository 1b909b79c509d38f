"""Run a step task for an item: engine, records, reports, verdict."""

from __future__ import annotations

import os
import queue
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_harbor.collection import markers
from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.items import StepTaskItem
from pytest_harbor.collection.judged import Judged, settle, tell_time_limit, threshold
from pytest_harbor.collection.live_step_run import LiveStepRun
from pytest_harbor.collection.places import run_places
from pytest_harbor.collection.step_files import step_types
from pytest_harbor.collection.warnings import warn_of_item
from pytest_harbor.errors import SANDBOX_UNAVAILABLE, HarborError
from pytest_harbor.events import Event
from pytest_harbor.results import junit, step_records
from pytest_harbor.results.records import Origin, Records
from pytest_harbor.results.step_text import step_text, step_warnings

if TYPE_CHECKING:
    from pytest_harbor.collection.providers import Choice
    from pytest_harbor.graphs.objects import ObjectStore
    from pytest_harbor.graphs.result import StepRunResult
    from pytest_harbor.sandboxes.api import Provider
    from pytest_harbor.settings import Settings
    from pytest_harbor.tasks.steps.task import StepTask
    from pytest_harbor.verdicts import Verdict


@dataclass(frozen=True)
class StepRequest:
    """Everything a run is made from; each part comes from a fixture."""

    item: pytest.Item
    task: StepTask
    settings: Settings
    provider: Choice
    store: ObjectStore | None
    attempt: int


def run(request: StepRequest) -> StepRunResult:
    """Run the task; gives its result when there is one to judge.

    Raises:
        pytest.fail.Exception: infrastructure, a refusal.
        pytest.skip.Exception: its kind of sandbox is not there, and that is no failure.
    """
    item = request.item
    item.user_properties[:] = junit.without_ours(item.user_properties)
    try:
        result, judged = _run(request)
    except HarborError as error:
        sessions.of(item.config).record_broken(item, request.task.name, error.message)
        raise
    settle(item, judged)
    return result


def providers_of(
    session: sessions.HarborSession, choice: Choice, names: frozenset[str]
) -> Mapping[str, Provider]:
    """The providers a run needs, by name; one that a fixture brought serves for all."""
    from pytest_harbor.sandboxes.api import Provider as ProviderType

    if isinstance(choice, ProviderType):
        provider = session.providers.choose(choice, needs_container=False)
        return dict.fromkeys((*names, provider.name), provider)
    return {name: session.providers.by_name(name) for name in sorted(names)}


def _run(request: StepRequest) -> tuple[StepRunResult, Judged]:
    from pytest_harbor.graphs.verdict import judge

    item, settings = request.item, request.settings
    session = sessions.of(item.config)
    origin = Origin(
        node_id=item.nodeid,
        min_reward=threshold(markers.read(item).min_reward, settings.min_reward),
        worker=session.worker,
        is_test=not isinstance(item, StepTaskItem),
        is_xfail=markers.expects_failure(item),
    )
    records, logs = run_places(session, f"{request.task.name}-{request.attempt}")
    live = LiveStepRun(item, is_told=isinstance(item, StepTaskItem))
    try:
        result = _in_loop(request, records, origin, logs=logs, live=live)
    except BaseException as error:
        # A time limit of the item, Ctrl-C, a hook that raised: nobody graded it.
        ended = live.interrupted(error)
        if ended is not None:
            verdict = judge(ended, threshold=origin.min_reward)
            _record(request, records, origin, ended, verdict)
            text = step_text(ended, verdict, root=item.config.rootpath)
            tell_time_limit(error, text, debug=settings.debug)
        raise
    verdict = judge(
        result, threshold=origin.min_reward, allow_tolerated=settings.allow_tolerated
    )
    if result.failure_kind == SANDBOX_UNAVAILABLE and settings.unavailable == "skip":
        verdict = replace(verdict, outcome="skipped")
    _record(request, records, origin, result, verdict)
    live.settle(verdict.steps)
    if verdict.outcome == "passed":  # else its text has them
        for line in step_warnings(result):
            warn_of_item(item, line)
    root = item.config.rootpath
    item.user_properties += junit.step_task_properties(
        result, attempt=request.attempt, min_reward=origin.min_reward, root=root
    )
    return result, Judged(verdict, step_text(result, verdict, root=root))


def _record(
    request: StepRequest,
    records: Records,
    origin: Origin,
    result: StepRunResult,
    verdict: Verdict,
) -> None:
    step_records.finished(
        records, result, verdict, origin=origin, attempt=request.attempt
    )


def _in_loop(
    request: StepRequest,
    records: Records,
    origin: Origin,
    *,
    logs: Path,
    live: LiveStepRun,
) -> StepRunResult:
    """Run the engine in its loop and its events through the hooks, here."""
    from pytest_harbor.graphs.preflight import needed_providers
    from pytest_harbor.graphs.run import run as run_engine

    item, task = request.item, request.task
    session = sessions.of(item.config)
    run_settings = session.run_settings(request.settings)
    agents = session.step_agents
    names = needed_providers(task, run_settings, agents)
    providers = providers_of(session, request.provider, names)
    records.started(
        origin=origin,
        task_id=task.name,
        agent=None,
        attempt=request.attempt,
        sandbox=", ".join(sorted(names)),
    )
    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def receive(event: Event) -> None:
        item.ihook.pytest_harbor_event(event=event, item=item)
        live.see(event)

    session.interrupts.arm()
    call = partial(
        run_engine,
        task,
        providers,
        inbox.put,
        logs=logs,
        settings=run_settings,
        store=request.store,
        environ=dict(os.environ),
        agents=agents,
        step_types=step_types(item.config),
        run_id=f"{session.run_id}-{task.name}-{os.urandom(4).hex()}",
        run_group_id=session.run_id,
    )
    try:
        return session.bridge.run(call, inbox=inbox, receive=receive)
    except BaseException:
        while not inbox.empty():  # what it told while it was being cancelled
            if isinstance(told := inbox.get(), Event):
                live.note(told)
        raise
