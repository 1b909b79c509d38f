"""The seam between the engine and step types: what a step gets, and how a type is known.

A step type is a model (what the task file holds) and an async function that does the work::

    async def greet(step: Greet, run: StepRun) -> None:
        agent = run.context.agent(step.agent_name)
        ...
        run.write(Put("greetings", step.id, text))

The function reads ``run.context``, and writes with :meth:`StepRun.write`, in one call and
only after its work has succeeded (spec 2.1). It fails by raising: a ``HarborError`` says
what happened in words for people; anything else is reported as a bug of the step type. What
it started and did not deploy under a name it stops itself, also when it is cancelled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pytest_harbor.graphs.context import Change, RunContext
from pytest_harbor.graphs.instances import AgentLaunch, Instance
from pytest_harbor.graphs.objects import ObjectStore
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.step import Step
from pytest_harbor.verification.judges.api import JudgeFactory

if TYPE_CHECKING:
    from pytest_harbor.graphs.servers import ServerPlan


@dataclass(frozen=True)
class Models:
    """Names of models: config ``[model] default`` and ``[model.roles]``."""

    default: str | None = None
    agent: str | None = None
    judge: str | None = None
    user: str | None = None
    api_base: str | None = None
    """Endpoint of the chat-completions judge; the step's own goes first."""

    @property
    def of_judges(self) -> str | None:
        """The model of judges whose step names none."""
        return self.judge or self.default


@dataclass(frozen=True)
class RunSettings:
    """What a run of steps is asked to do, beyond its task. Times in seconds."""

    models: Models = field(default_factory=Models)
    run_model: str | None = None
    """The run's own model, which beats a step's (spec 7.1)."""
    default_agent: str | None = None
    """Agent of ``deploy_agent`` steps and judges that name none."""
    judges: Mapping[str, JudgeFactory] = field(default_factory=dict)
    """The project's own judges (hook ``pytest_harbor_judges``), by the name that a step
    gives as ``judge_a2a_agent_id`` or ``default_model``."""
    human_a2a_url: str | None = None
    """Where a person answers, for conversations that name no user (spec 7.3)."""
    env_sandbox: str = "auto"
    """Sandbox provider of envs that name none."""
    agent_sandbox: str = "auto"
    max_concurrent_steps: int | None = None
    """``None`` is no cap, as the format says (spec 2.1)."""
    env_ready_seconds: float = 180.0
    agent_ready_seconds: float = 300.0
    load_base_seconds: float = 900.0
    load_seconds_per_gigabyte: float = 1200.0
    load_max_seconds: float = 3600.0
    check_seconds: float = 600.0
    """Limit of an author's own check."""
    max_collect_file_bytes: int = 512 * 1024**2
    max_collect_bytes: int = 2 * 1024**3

    @classmethod
    def of(cls, settings: Settings) -> RunSettings:
        """What the settings of a test session mean for a run of steps."""
        return cls(
            models=Models(
                agent=settings.agent_model,
                judge=settings.judge_model,
                user=settings.user_model,
                api_base=settings.model_api_base,
            ),
            run_model=settings.model,
            default_agent=settings.default_agent,
            human_a2a_url=settings.human_a2a_url,
            env_sandbox=settings.sandbox,
            agent_sandbox=settings.sandbox,
            max_concurrent_steps=settings.max_concurrent_steps,
        )


ReservedKind: TypeAlias = Literal["env", "agent", "sandbox"]


class StepRun(ABC):
    """What one step gets for one execution of it."""

    step: Step
    execution: int
    """1, and one more after each retry of its span."""
    context: RunContext
    """To read. It may change whenever the step awaits; write with :meth:`write`."""
    bundle: Bundle
    settings: RunSettings
    store: ObjectStore
    masker: Masker
    """Mask with it what goes to the store, to a file or into a message."""
    environ: Mapping[str, str]
    """Where ``${VAR}`` templates are resolved from."""
    data_token: str
    """Opens the data planes of the run's envs; no agent has it."""
    logs: Path
    """Host folder of this step; made on first use by whoever writes there."""

    @abstractmethod
    def write(self, *changes: Change) -> None:
        """Write to the context, all at once. A retry takes it back by itself."""

    @abstractmethod
    def warn(self, message: str) -> None:
        """Report something that does not fail the step."""

    @abstractmethod
    def reserve(self, kind: ReservedKind, name: str) -> AbstractContextManager[None]:
        """Hold a name while deploying under it; of two steps only one gets it (spec 4).

        Raises:
            AlreadyDeployed: the run has it, or another step is about to; in the
                format's own words.
        """

    @abstractmethod
    async def start_server(self, plan: ServerPlan) -> Instance:
        """Start a server in a sandbox of its own, and wait until it answers.

        It is torn down with the run, or with a retry of this step. Until it is in the
        context, stopping it after a failure is the step's own business.

        Raises:
            ServerNotReady: it did not come up in time, or ended; with the log's tail.
            SandboxError: as ``Provider.start``.
        """

    @abstractmethod
    async def start_agent(self, launch: AgentLaunch) -> Instance:
        """Start an agent and wait for its card (spec 6, step 3), as :meth:`start_server`.

        Raises:
            StepError: no agent of that ID (with the nearest), or of that version.
            ServerNotReady, SandboxError: as :meth:`start_server`.
        """

    @abstractmethod
    def instance(self, instance_id: str) -> Instance | None:
        """What is behind a record of the context; ``None`` for a live URL.

        One that was stopped is still found; its ``death`` says so.
        """

    @abstractmethod
    async def dispose(self, *instances: Instance) -> None:
        """Stop instances, cancelled or not; a failure is a warning (spec 2.3)."""


StepFunction: TypeAlias = Callable[[Any, StepRun], Awaitable[None]]


@dataclass(frozen=True)
class StepType:
    """A step type of a project (hook ``pytest_harbor_step_types``)."""

    model: type[Step]
    run: StepFunction
