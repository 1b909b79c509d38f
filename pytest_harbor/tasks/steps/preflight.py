"""What can be known before the first step only with the settings of a run (spec 13, 6)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from pytest_harbor.errors import Problem, TaskLoadError
from pytest_harbor.tasks.steps.model import (
    DeployAgent,
    DeployEnv,
    PromptAgent,
    RubricsVerifier,
)
from pytest_harbor.tasks.steps.read_steps import place
from pytest_harbor.tasks.steps.step import Step
from pytest_harbor.tasks.steps.task import StepTask

RULE = "13.6"


@dataclass(frozen=True)
class Available:
    """What a run has besides the task and its bundle."""

    agents: Collection[str] = ()
    """Registered agents."""
    default_agent: str | None = None
    """Agent of steps that name none."""
    judges: Collection[str] = ()
    """Judges of the project's own, which are no agents."""
    judge_model: str | None = None
    """Model of judges that name none."""
    human_a2a_url: str | None = None
    """Where a person answers, of conversations that name no user."""
    sandboxes: Collection[str] | None = None
    """Names of the sandbox providers; ``None`` leaves them unchecked."""


def preflight(task: StepTask, available: Available) -> tuple[Problem, ...]:
    """Why a run of ``task`` would fail for want of an agent, a judge or a user."""
    return tuple(dict.fromkeys(_Preflight(task, available).problems()))


class _Preflight:
    def __init__(self, task: StepTask, available: Available) -> None:
        self.task = task
        self.bundle = task.bundle
        self.available = available
        self.deployed = {
            step.agent_name for step in task.steps if isinstance(step, DeployAgent)
        }

    def problems(self) -> Iterator[Problem]:
        for step in self.task.steps:
            match step:
                case DeployAgent():
                    yield from self._agent(step, "a2a_agent_id", step.a2a_agent_id)
                    yield from self._sandbox(step, step.sandbox_type)
                case DeployEnv():
                    yield from self._sandbox(step, step.sandbox_type)
                case PromptAgent():
                    yield from self._user(step)
                case RubricsVerifier():
                    yield from self._judge(step)

    def _problem(self, step: Step, field: str, what: str) -> Problem:
        where = place(self.task.label, step.position, step.id, field)
        return Problem(where, what, RULE)

    def _agent(self, step: Step, field: str, agent_id: str | None) -> Iterator[Problem]:
        name = agent_id or self.available.default_agent
        if name is None:
            what = f"no agent: give {field}, or configure a default agent"
            yield self._problem(step, "", what)
            return
        if name in self.available.agents:
            return
        try:
            if self.bundle.agent(name) is not None:
                return
        except TaskLoadError as error:
            yield from error.problems
            return
        what = f"no agent '{name}', neither in the bundle nor registered"
        registered = get_close_matches(name, self.available.agents, n=1)
        near = registered[0] if registered else self.bundle.near("agent", name)
        if near is not None:
            what += f" (did you mean '{near}'?)"
        if agent_id is None:
            what += "; it is the configured default"
        yield self._problem(step, field, what)

    def _sandbox(self, step: Step, sandbox: str | None) -> Iterator[Problem]:
        known = self.available.sandboxes
        if sandbox is None or known is None or sandbox in known:
            return
        what = f"no sandbox provider '{sandbox}'; there are {', '.join(sorted(known))}"
        yield self._problem(step, "sandbox_type", what)

    def _judge(self, step: RubricsVerifier) -> Iterator[Problem]:
        if not step.use_agent_judge:
            if step.default_model is None and self.available.judge_model is None:
                what = "no judge model: give default_model, or configure one"
                yield self._problem(step, "", what)
        elif (
            step.agent_name is None
            and step.judge_a2a_agent_id not in self.available.judges
        ):
            yield from self._agent(step, "judge_a2a_agent_id", step.judge_a2a_agent_id)

    def _user(self, step: PromptAgent) -> Iterator[Problem]:
        if (
            step.is_conversation
            and step.user_a2a_url is None
            and step.user_agent_name not in self.deployed
            and self.available.human_a2a_url is None
        ):
            what = (
                "nobody answers the agent: give user_agent_name of a deployed agent or"
                " user_a2a_url, or configure a person's endpoint"
            )
            yield self._problem(step, "", what)
