"""What would keep a run from working, found before its first step (spec 13.6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from pytest_harbor.errors import (
    HarborError,
    SandboxUnavailable,
    SettingsError,
    StepError,
    TaskLoadError,
    TaskRefused,
    UnsupportedByProvider,
)
from pytest_harbor.graphs.agents import (
    MODEL_VARIABLES,
    AgentSource,
    find_agent,
    launch_of,
    with_built_in,
)
from pytest_harbor.graphs.envs import find_env, plan_env
from pytest_harbor.graphs.open_run import RunParts
from pytest_harbor.graphs.steps.api import RunSettings
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.tasks.folder.templates import resolve
from pytest_harbor.tasks.steps.model import DeployAgent, DeployEnv, RubricsVerifier
from pytest_harbor.tasks.steps.preflight import Available, preflight
from pytest_harbor.tasks.steps.step import Step
from pytest_harbor.tasks.steps.task import StepTask

SECRET_VARIABLES: Final = (*MODEL_VARIABLES[1:], "OPENAI_API_KEY")
"""Variables of the runner whose values are masked wherever they turn up."""


def secrets_of(task: StepTask, environ: Mapping[str, str]) -> list[str]:
    """Every value that must not be shown: of ``${VAR}`` in steps, and keys of models."""
    found = [environ[name] for name in SECRET_VARIABLES if name in environ]
    for step in task.steps:
        if isinstance(step, DeployAgent):
            found += resolve(step.env_vars, step.id, environ).secrets
    return found


def needed_providers(
    task: StepTask,
    settings: RunSettings,
    agents: Mapping[str, AgentSource] | None = None,
) -> frozenset[str]:
    """Names of the sandbox providers that a run of the task will use.

    What cannot be found is left out: :func:`refuse` names it.
    """
    return frozenset(
        provider for _, provider in _sandboxes(task, settings, agents or {})
    )


async def refuse(task: StepTask, parts: RunParts) -> None:
    """Refuse a run that cannot work. Nothing has been started.

    Raises:
        TaskRefused: with one line for each reason.
        SandboxUnavailable: a kind of sandbox that it needs is not there.
    """
    settings = parts.settings
    available = Available(
        agents=with_built_in(parts.agents),
        default_agent=settings.default_agent,
        judges=settings.judges.keys(),
        judge_model=settings.models.of_judges,
        human_a2a_url=settings.human_a2a_url,
    )
    problems = [str(problem) for problem in preflight(task, available)]
    problems += _missing_variables(task, parts.environ)
    counts = Counter(
        provider for _, provider in _sandboxes(task, settings, parts.agents)
    )
    for name, count in sorted(counts.items()):
        if problem := await _provider_problem(name, count, parts):
            problems.append(problem)
    for step in task.steps:
        problems += _step_problems(step, parts)
        if isinstance(step, RubricsVerifier) and not step.use_agent_judge:
            problems += _model_judge_problems(step, parts)
    if problems:
        raise TaskRefused("\n".join(dict.fromkeys(problems)))


async def _provider_problem(name: str, count: int, parts: RunParts) -> str | None:
    """Why ``count`` sandboxes of that provider cannot be had."""
    if name not in parts.providers:
        return f"no sandbox provider '{name}'"
    capabilities = await parts.providers[name].probe()
    if not capabilities.available:
        raise SandboxUnavailable(capabilities.reason)
    if count > 1 and not capabilities.concurrent:
        return (
            f"sandbox '{name}' ({capabilities.mode}) holds one sandbox at a time, and "
            f"this task needs {count}; use another one"
        )
    return None


def _step_problems(step: Step, parts: RunParts) -> list[str]:
    try:
        wanted = _sandbox(step, parts)
        if wanted is not None and wanted[0] in parts.providers:
            provider, spec = wanted
            parts.providers[provider].check(spec, ())
    except (StepError, UnsupportedByProvider, SettingsError) as error:
        return [f"step {step.id} ({step.type}): {error}"]
    except TaskLoadError:
        return []  # told by others
    return []


def _model_judge_problems(step: RubricsVerifier, parts: RunParts) -> Iterator[str]:
    """What a judge that is a model lacks: told before agents have worked for nothing."""
    from pytest_harbor.protocols import chat_completions

    models = parts.settings.models
    model = step.default_model or models.of_judges
    if model is None or model in parts.settings.judges:
        return  # told by others; a project's own
    where = f"step {step.id} ({step.type})"
    base = step.default_model_api_base or models.api_base
    try:
        chat_completions.check_installed()
        endpoint = chat_completions.find_endpoint(base, None, parts.environ)
    except (HarborError, ValueError) as error:
        yield f"{where}: {error}"
        return
    if endpoint.lacks_key:
        yield (
            f"{where}: the judge's model {model} needs OPENAI_API_KEY, which is not set;"
            " or name another endpoint (OPENAI_BASE_URL, default_model_api_base)"
        )


def _sandbox(step: Step, parts: RunParts) -> tuple[str, EnvironmentSpec] | None:
    """The sandbox that a step will start, as far as it is known by now.

    Raises:
        StepError, SettingsError: it cannot be started.
    """
    if isinstance(step, DeployEnv):
        entry = find_env(step.env_id, step.env_version, parts.bundle)
        plan = plan_env(step, entry, parts.settings)
        return plan.provider, plan.spec
    if not isinstance(step, DeployAgent):
        return None
    agent_id = step.a2a_agent_id or parts.settings.default_agent
    if agent_id is None:
        return None
    try:
        source = find_agent(agent_id, parts.bundle, parts.agents)
    except StepError:
        return None  # told by others
    launch = launch_of(step, agent_id, parts.settings, {})
    source.check(launch)
    provider = source.provider(launch.sandbox_type or "auto")
    return provider, source.spec(launch, provider)


def _missing_variables(task: StepTask, environ: Mapping[str, str]) -> Iterator[str]:
    for step in task.steps:
        if isinstance(step, DeployAgent):
            for name, _ in resolve(step.env_vars, step.id, environ).missing:
                yield (
                    f"step {step.id} ({step.type}): env_vars needs the variable {name}, "
                    "which is not set"
                )


def _sandboxes(
    task: StepTask, settings: RunSettings, agents: Mapping[str, AgentSource]
) -> Iterator[tuple[str, str]]:
    """Each sandbox that the task needs: the step, and the provider."""
    for step in task.steps:
        try:
            provider = _provider(step, task, settings, agents)
        except HarborError:  # told by others
            provider = None
        if provider is not None:
            yield step.id, provider


def _provider(
    step: Step,
    task: StepTask,
    settings: RunSettings,
    agents: Mapping[str, AgentSource],
) -> str | None:
    match step:
        case DeployEnv():
            entry = find_env(step.env_id, step.env_version, task.bundle)
            return plan_env(step, entry, settings).provider
        case DeployAgent():
            agent_id = step.a2a_agent_id
            choice = step.sandbox_type or settings.agent_sandbox
        case RubricsVerifier() if step.use_agent_judge and step.agent_name is None:
            agent_id, choice = step.judge_a2a_agent_id, settings.agent_sandbox
        case _:
            return None
    wanted = agent_id or settings.default_agent
    if wanted is None:
        return None
    return find_agent(wanted, task.bundle, agents).provider(choice)
