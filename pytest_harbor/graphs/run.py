"""Running a step task: checked, scheduled, torn down, summed up (spec 2)."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import anyio

from pytest_harbor.agents.python_agent import describe as describe_foreign
from pytest_harbor.errors import (
    CANCELLED,
    HarborError,
    SandboxUnavailable,
    TaskRefused,
)
from pytest_harbor.events import Observer
from pytest_harbor.graphs.agents import AgentSource
from pytest_harbor.graphs.context import (
    Append,
    MarkRetried,
    RunContext,
    context_from_plain,
    context_to_plain,
)
from pytest_harbor.graphs.objects import FolderStore, ObjectStore
from pytest_harbor.graphs.open_run import OpenRun, RunParts, open_run
from pytest_harbor.graphs.outcome import (
    failure_kind,
    is_infrastructure,
    outcome,
    reward,
    scores,
)
from pytest_harbor.graphs.preflight import needed_providers, refuse, secrets_of
from pytest_harbor.graphs.result import (
    StepResult,
    StepRunResult,
    run_to_plain,
    step_to_plain,
)
from pytest_harbor.graphs.scheduler import Ending, Node, Retry, run_graph
from pytest_harbor.graphs.steps.api import RunSettings, StepType
from pytest_harbor.protocols.excerpts import shortened
from pytest_harbor.reporter import Reporter
from pytest_harbor.sandboxes.api import Provider
from pytest_harbor.sandboxes.choose import LOCAL
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.tasks.steps.step import Step
from pytest_harbor.tasks.steps.task import StepTask

MAX_ERROR_CHARACTERS: Final = 20_000
"""Of a step's error, log tail included, in reports and records."""


async def run(
    task: StepTask,
    providers: Mapping[str, Provider],
    observe: Observer | None = None,
    *,
    logs: Path,
    settings: RunSettings | None = None,
    store: ObjectStore | None = None,
    environ: Mapping[str, str] | None = None,
    agents: Mapping[str, AgentSource] | None = None,
    step_types: Mapping[str, StepType] | None = None,
    run_id: str | None = None,
    run_group_id: str | None = None,
) -> StepRunResult:
    """Run one step task; many may run at once in one event loop.

    ``logs`` is the run's folder on the host: ``context.json``, ``servers/`` with a log
    each, ``steps/`` and, without a ``store``, ``objects/``. ``providers`` has at least
    those of :func:`~pytest_harbor.graphs.preflight.needed_providers`. ``run_id``
    is made up where it is not given; it becomes ``instance_id``.

    What belongs to the run is told by the result's ``outcome``. Cancelling it raises as
    usual, after the teardown; the ``run_ended`` event then says ``cancelled``.
    """
    settings = settings or RunSettings()
    environ = os.environ if environ is None else environ
    run_id = run_id or f"{task.name}-{secrets.token_hex(6)}"
    report = Reporter(observe, run_id)
    token = secrets.token_urlsafe(24)
    needed = needed_providers(task, settings, agents)
    parts = RunParts(
        task_id=task.name,
        bundle=task.bundle,
        providers=providers,
        logs=logs,
        store=store or FolderStore(logs / "objects"),
        settings=settings,
        environ=environ,
        agents=agents or {},
        step_types=step_types or {},
        is_exposed=needed != {LOCAL},
        data_token=token,
        masker=Masker([token, *secrets_of(task, environ)]),
    )
    context = RunContext(run_id, agent_model=settings.run_model)
    context.metadata.update(
        run_group_id=run_group_id or run_id,
        task_id=task.name,
        seed=dict(task.seed),
        user_overrides=dict(task.overrides),
    )
    async with open_run(parts, context, report) as opened:
        return await _TaskRun(task, opened).run_task()


@dataclass
class _TaskRun:
    """The steps of one task in an open run. It is what the scheduler drives."""

    task: StepTask
    opened: OpenRun
    results: dict[str, StepResult] = field(default_factory=dict)
    first_failed: Ending | None = None
    refusal: HarborError | None = None
    is_cancelled: bool = False

    async def run_task(self) -> StepRunResult:
        started_at, started = time.time(), time.monotonic()
        steps = [step.id for step in self.task.steps]
        self.opened.report.send("run_started", data={"steps": list(steps)})
        try:
            await self._run_steps()
            self.opened.save()
        except OSError as error:
            self.refusal = HarborError(f"on the host: {describe(error)}")
        except anyio.get_cancelled_exc_class():
            self.is_cancelled = True
            raise
        finally:
            await self.opened.tear_down()
            with suppress(OSError):  # told by now, or cancelled
                self.opened.save()
            result = replace(
                self._result(),
                started_at=started_at,
                seconds=time.monotonic() - started,
            )
            self.opened.report.send("run_ended", data=run_to_plain(result))
        return result

    async def _run_steps(self) -> None:
        try:
            await refuse(self.task, self.opened.parts)
        except (TaskRefused, SandboxUnavailable) as error:
            self.refusal = error
            return
        nodes = [_node(step) for step in self.task.steps]
        cap = self.opened.parts.settings.max_concurrent_steps
        await run_graph(nodes, self, max_concurrent=cap)

    # The scheduler's Work

    async def run(self, step_id: str) -> None:
        await self.opened.execute(self.task.by_id[step_id])

    async def undo(self, step_ids: frozenset[str]) -> None:
        await self.opened.undo(step_ids)

    def ended(self, ending: Ending) -> None:
        step = self.task.by_id[ending.step_id]
        if ending.status == "failed" and self.first_failed is None:
            self.first_failed = ending
        if ending.status == "passed":
            self.opened.journal.write(None, MarkRetried(step.id))
        elif ending.status != "cancelled":
            self.opened.journal.write(None, self._failure(step, ending))
        result = self._step_result(step, ending)
        self.results[step.id] = result
        self.opened.save()
        self.opened.report.send("step_ended", step=step.id, data=step_to_plain(result))

    def _failure(self, step: Step, ending: Ending) -> Append:
        """The entry of ``failed_steps`` (spec 2.2)."""
        assert ending.error is not None
        started = datetime.fromtimestamp(ending.started_at, timezone.utc)
        return Append(
            "failed_steps",
            {
                "step_id": step.id,
                "step_type": step.type,
                "error": self._masked(str(ending.error)),
                "error_type": type(ending.error).__name__,
                "started_at_utc": started.isoformat(timespec="milliseconds"),
                "duration_seconds": round(ending.seconds, 3),
                "is_fatal": ending.status == "failed",
            },
        )

    def _step_result(self, step: Step, ending: Ending) -> StepResult:
        error = ending.error
        result = StepResult(
            id=step.id,
            type=step.type,
            position=step.position,
            status=ending.status,
            scores=self._scores(step.id),
            warnings=self._warnings(step.id),
            executions=self.opened.executions(step.id),
            started_at=ending.started_at,
            seconds=ending.seconds,
        )
        if error is None or ending.status == "cancelled":
            return result
        return replace(
            result,
            error=self._masked(describe(error)),
            error_type=type(error).__name__,
            failure_kind=failure_kind(error),
            is_infrastructure=is_infrastructure(error),
        )

    def _scores(self, step_id: str) -> dict[str, float]:
        found = scores(self.opened.context.metadata)
        return {
            verifier: found[verifier]
            for verifier in self.opened.verifiers.get(step_id, ())
            if verifier in found
        }

    def _masked(self, text: str) -> str:
        """A text for reports and records: agents and servers wrote some of it."""
        return shortened(self.opened.parts.masker.text(text), MAX_ERROR_CHARACTERS)

    def _warnings(self, step_id: str | None) -> tuple[str, ...]:
        return tuple(text for step, text in self.opened.warnings if step == step_id)

    def _result(self) -> StepRunResult:
        context = self.opened.context
        masked = context_from_plain(context_to_plain(context, self.opened.parts.masker))
        result = StepRunResult(
            task_id=self.task.name,
            instance_id=context.instance_id,
            outcome=outcome(masked.metadata, has_error=self.refusal is not None),
            steps=tuple(self._final(step) for step in self.task.steps),
            context=masked,
            scores=scores(masked.metadata),
            reward=reward(masked.metadata),
            warnings=self._warnings(None),
            sandboxes=self.opened.deployments.used_providers(),
            model=context.agent_model or context.default_agent_model,
            logs=self.opened.parts.logs,
        )
        if self.is_cancelled:
            return replace(result, outcome="cancelled", failure_kind=CANCELLED)
        return replace(result, **self._why(result))

    def _final(self, step: Step) -> StepResult:
        """The step's last result, with warnings that came after its end."""
        result = self.results.get(step.id)
        if result is None:
            return StepResult(step.id, step.type, step.position, "not_run")
        return replace(result, warnings=self._warnings(step.id))

    def _why(self, result: StepRunResult) -> dict[str, Any]:
        """Why the run failed: a refusal, its first fatal error, else a tolerated one."""
        if self.refusal is not None:
            return {
                "failure_kind": self.refusal.kind,
                "failure_reason": self._masked(self.refusal.message),
                "is_infrastructure": True,
            }
        failed = list(result.failed_steps)
        if self.first_failed is not None:
            failed.insert(0, result.step(self.first_failed.step_id))
        if not failed:
            return {}
        first = failed[0]
        return {
            "failure_kind": first.failure_kind,
            "failure_reason": f"step {first.id} ({first.type}): {first.error}",
            "is_infrastructure": first.is_infrastructure,
        }


def describe(error: BaseException) -> str:
    """An error's text for people; of one that is none of ours its type, too."""
    if isinstance(error, HarborError):
        return error.message
    return describe_foreign(error)


def _node(step: Step) -> Node:
    retry = None
    if step.retry is not None:
        retry = Retry(step.retry.retry_from_step_id, step.retry.max_retries)
    return Node(step.id, step.depends_on, step.fail_task_on_error, retry)
