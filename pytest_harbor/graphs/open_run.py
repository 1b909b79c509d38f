"""A run that steps can be executed in, one by one or as a graph, and its end (spec 2.3)."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import anyio

from pytest_harbor.errors import HarborError
from pytest_harbor.graphs.agents import MODEL_VARIABLES, AgentSource, find_agent
from pytest_harbor.graphs.context import (
    Change,
    Journal,
    Put,
    RunContext,
    context_to_plain,
)
from pytest_harbor.graphs.deployments import Deployments, Starter
from pytest_harbor.graphs.instances import AgentLaunch, Instance
from pytest_harbor.graphs.objects import ObjectStore
from pytest_harbor.graphs.servers import SandboxServer, ServerPlan, Surroundings
from pytest_harbor.graphs.steps.api import (
    ReservedKind,
    RunSettings,
    StepRun,
    StepType,
)
from pytest_harbor.graphs.steps.registry import step_function
from pytest_harbor.reporter import Reporter
from pytest_harbor.sandboxes.api import TASK_LABEL, Provider
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.step import Step

CONTEXT_FILE: Final = "context.json"


@dataclass(frozen=True)
class RunParts:
    """What a run is given."""

    task_id: str
    bundle: Bundle
    providers: Mapping[str, Provider]
    logs: Path
    """Its folder on the host."""
    store: ObjectStore
    settings: RunSettings = field(default_factory=RunSettings)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    agents: Mapping[str, AgentSource] = field(default_factory=dict)
    step_types: Mapping[str, StepType] = field(default_factory=dict)
    masker: Masker = field(default_factory=lambda: Masker(()))
    is_exposed: bool = True
    """Whether servers must be reached from containers; if not, only from this host."""
    data_token: str = field(
        default_factory=lambda: secrets.token_urlsafe(24), repr=False
    )
    """Opens the data planes of the run's envs, to the engine and not to agents."""


class OpenRun:
    """A run under way. Made by :func:`open_run`."""

    def __init__(
        self,
        parts: RunParts,
        journal: Journal,
        report: Reporter,
        deployments: Deployments,
    ) -> None:
        self.parts = parts
        self.journal = journal
        self.report = report
        self.deployments = deployments
        self.warnings: list[tuple[str | None, str]] = []
        """Each with the step that it belongs to."""
        self.verifiers: dict[str, list[str]] = {}
        """Verifier IDs by the step that wrote them."""
        self._executions: dict[str, int] = {}
        self._is_over = False

    @property
    def context(self) -> RunContext:
        """The shared context, to read."""
        return self.journal.context

    def executions(self, step_id: str) -> int:
        """How often a step has been executed so far."""
        return self._executions.get(step_id, 0)

    async def execute(self, step: Step) -> None:
        """Do the work of one step. Raises what the step raises."""
        number = self.executions(step.id) + 1
        self._executions[step.id] = number
        self.report.send(
            "step_started",
            step=step.id,
            data={"type": step.type, "execution": number},
        )
        function = step_function(step.type, self.parts.step_types)
        try:
            await function(step, _StepRun(self, step, number))
        except HarborError as error:
            self._say_what_died(step, error)
            raise

    def _say_what_died(self, step: Step, error: HarborError) -> None:
        """Add to a step's error why what it works with is gone (its log's tail)."""
        for instance in self._named_by(step):
            death = instance.death
            if death is not None and death not in str(error):
                text = f"{error}\n{instance.what} {death}"
                error.args = (text, *error.args[1:])

    def _named_by(self, step: Step) -> list[Instance]:
        ids: list[str] = []
        for name in step.reads():
            if name.kind == "env":
                envs = self.context.deployed_envs
                ids += [env.instance_id for env in envs if env.env_id == name.name]
            elif name.kind == "agent":
                agents = self.context.deployed_agents
                ids += [
                    one.instance_id for one in agents if one.agent_name == name.name
                ]
        found = [self.deployments.find(instance_id) for instance_id in ids]
        return [instance for instance in found if instance is not None]

    async def undo(self, step_ids: Collection[str]) -> None:
        """Take back what these steps wrote and deployed (spec 2.2)."""
        self.journal.undo(step_ids)
        for step_id in step_ids:
            self.verifiers.pop(step_id, None)
        for problem in await self.deployments.stop_of_steps(step_ids):
            self.warn(None, problem)

    def write(self, step_id: str, changes: Collection[Change]) -> None:
        """Write for a step, all changes at once."""
        self.journal.write(step_id, *changes)
        for change in changes:
            if isinstance(change, Put) and change.keys[0] == "verifications":
                self.verifiers.setdefault(step_id, []).extend(change.keys[1:2])

    def warn(self, step_id: str | None, message: str) -> None:
        """Keep and report a warning; ``None`` is the run itself."""
        message = self.parts.masker.text(message)
        self.warnings.append((step_id, message))
        self.report.send("warning", step=step_id, message=message)

    def save(self) -> None:
        """Write the context to the run's folder, secrets masked, never a half of it."""
        text = json.dumps(context_to_plain(self.context, self.parts.masker), indent=1)
        self.parts.logs.mkdir(parents=True, exist_ok=True)
        file = self.parts.logs / CONTEXT_FILE
        new = file.with_suffix(".new")
        new.write_text(text, encoding="utf-8", errors="surrogatepass")
        new.replace(file)

    async def tear_down(self) -> None:
        """Stop everything that is up, cancelled or not; a failure is a warning.

        Once is enough: what could not be stopped then is the provider's to remove.
        """
        if self._is_over:
            return
        self._is_over = True
        for problem in await self.deployments.stop_all():
            self.warn(None, problem)


class _StepRun(StepRun):
    """One execution of one step."""

    def __init__(self, run: OpenRun, step: Step, execution: int) -> None:
        parts = run.parts
        self.step = step
        self.execution = execution
        self.context = run.context
        self.bundle = parts.bundle
        self.settings = parts.settings
        self.store = parts.store
        self.masker = parts.masker
        self.environ = parts.environ
        self.data_token = parts.data_token
        self.logs = parts.logs / "steps" / step_folder(step)
        self._run = run
        self._starter = Starter(run.deployments, step.id)

    def write(self, *changes: Change) -> None:
        self._run.write(self.step.id, changes)

    def warn(self, message: str) -> None:
        self._run.warn(self.step.id, message)

    def reserve(self, kind: ReservedKind, name: str) -> AbstractContextManager[None]:
        return self._run.deployments.reserve(kind, name)

    async def start_server(self, plan: ServerPlan) -> Instance:
        started = time.monotonic()
        server = await self._starter.start_server(plan)
        self._tell(server, started)
        return server

    async def start_agent(self, launch: AgentLaunch) -> Instance:
        source = find_agent(launch.agent_id, self.bundle, self._run.parts.agents)
        own = {key: self.environ[key] for key in MODEL_VARIABLES if key in self.environ}
        launch = replace(
            launch,
            sandbox_type=launch.sandbox_type or self.settings.agent_sandbox,
            env={**own, **launch.env},
        )
        started = time.monotonic()
        instance = await source.start(
            launch, self._starter, ready_seconds=self.settings.agent_ready_seconds
        )
        self._tell(instance, started)
        return instance

    def _tell(self, instance: Instance, started: float) -> None:
        sandbox = instance.sandbox
        self._run.report.send(
            "deployed",
            step=self.step.id,
            data={
                "what": instance.what,
                "instance": instance.instance_id,
                "sandbox": None if sandbox is None else sandbox.id,
                "provider": None if sandbox is None else sandbox.provider,
                "seconds": time.monotonic() - started,
            },
        )

    def instance(self, instance_id: str) -> Instance | None:
        return self._run.deployments.find(instance_id)

    async def dispose(self, *instances: Instance) -> None:
        for problem in await self._run.deployments.stop(instances):
            self.warn(problem)


def step_folder(step: Step) -> str:
    """The name of a step's folder on the host; IDs may hold anything."""
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", step.id)[:60].strip("-.")
    return f"{step.position:02d}-{readable or 'step'}"


@asynccontextmanager
async def open_run(
    parts: RunParts, context: RunContext, report: Reporter
) -> AsyncIterator[OpenRun]:
    """A run for the time of the block; at its end everything is torn down.

    Whatever happens in the block, cancellation included, no instance outlives it.
    """
    problem: BaseException | None = None
    journal = Journal(context)
    report.masker = parts.masker

    def note_death(server: SandboxServer) -> None:
        run.warn(None, f"{server.what} {server.death}")

    async with anyio.create_task_group() as background:
        around = Surroundings(
            labels={TASK_LABEL: parts.task_id},
            logs=parts.logs / "servers",
            masker=parts.masker,
            background=background,
            is_exposed=parts.is_exposed,
            on_death=note_death,
            dispose=lambda instance: deployments.stop([instance]),
        )
        deployments = Deployments(parts.providers, context, around)
        run = OpenRun(parts, journal, report, deployments)
        try:
            yield run
        except Exception as error:  # noqa: BLE001 - raised below, not in a group
            problem = error
        finally:
            await run.tear_down()
            background.cancel_scope.cancel()
    if problem is not None:
        raise problem
