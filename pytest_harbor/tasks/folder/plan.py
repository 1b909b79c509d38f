"""Turns a task and the run's settings into the plan of an episode.

Every fallback of the specification is resolved here, without a sandbox. Nothing is
read but the prompt template and, for the digest, the task's files.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pytest_harbor.errors import SettingsError
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.artifacts import artifact_plans
from pytest_harbor.tasks.folder.compose_services import variable_names
from pytest_harbor.tasks.folder.deadline import episode_deadline
from pytest_harbor.tasks.folder.digest import folder_digest, task_digest
from pytest_harbor.tasks.folder.mcp import mcp_server_plans
from pytest_harbor.tasks.folder.model import (
    DEFAULT_VERIFIER_TIMEOUT_SEC,
    CollectHookConfig,
    EnvironmentConfig,
    HealthCheckConfig,
    NetworkTable,
    StepConfig,
    TaskConfig,
)
from pytest_harbor.tasks.folder.modes import (
    builds_from_tests,
    used_mode,
    verifier_environment,
)
from pytest_harbor.tasks.folder.plan_refusals import plan_refusals
from pytest_harbor.tasks.folder.plan_types import (
    CollectHookPlan,
    EnvironmentPlan,
    EpisodePlan,
    HealthCheckPlan,
    InputFolder,
    NetworkPlan,
    Origin,
    TurnPlan,
    VerifierPlan,
)
from pytest_harbor.tasks.folder.task import StepFiles, Task

PLACEHOLDER = "{instruction}"

# Stands in for the [[steps]] table that a single-step task does not have.
NO_STEP = StepConfig(name="none")

Value = TypeVar("Value")


def plan_episode(
    task: Task, settings: Settings, *, agent: str, attempt: int = 1
) -> EpisodePlan:
    """The plan of one attempt of ``agent`` at ``task``.

    Raises:
        SettingsError: the prompt template cannot be read or has no placeholder.
    """
    steps: tuple[StepFiles | None, ...] = task.steps or (None,)
    turns = tuple(
        _turn(task, settings, step, index) for index, step in enumerate(steps)
    )
    deadline = episode_deadline(turns, settings)
    author = task.config.pytest_harbor
    folder = folder_digest(task.folder)
    environment = task.config.environment
    return EpisodePlan(
        task_id=task.id,
        folder=task.folder,
        digest=task_digest(folder, task),
        folder_digest=folder,
        agent=agent,
        model=settings.model,
        attempt=attempt,
        environment=_agent_environment(task),
        turns=turns,
        is_multi_step=task.is_multi_step,
        deadline_seconds=deadline.seconds,
        deadline_enforced=deadline.enforced,
        reward_strategy=task.config.multi_step_reward_strategy,
        reward_key=author.reward_key or settings.reward_key,
        healthcheck=_health_check(environment.healthcheck),
        solution_env=task.config.solution.env,
        task_data=task.task_data,
        mcp_servers=mcp_server_plans(
            environment.mcp_servers, "[[environment.mcp_servers]]"
        ),
        skills_dir=environment.skills_dir or None,
        retries=settings.retries,
        turn_sessions=settings.turn_sessions,
        agent_outcome_policy=settings.agent_outcome_policy,
        agent_setup_timeout_seconds=settings.agent_setup_timeout_s,
        force_build=settings.force_build
        or (task.dataset is not None and task.dataset.force_build),
        warnings=(*task.warnings, *deadline.warnings),
        refusals=plan_refusals(task, settings, turns, agent=agent),
    )


def _turn(
    task: Task, settings: Settings, step: StepFiles | None, index: int
) -> TurnPlan:
    config = task.config
    own = step.config if step is not None else NO_STEP
    agent_timeout = _first(own.agent.timeout_sec, config.agent.timeout_sec)
    budget = _scaled(agent_timeout, task, settings)
    instruction = step.instruction if step is not None else task.instruction or ""
    if index == 0 and settings.prompt_template is not None:
        instruction = apply_template(settings.prompt_template, instruction)

    solution, has_script = _solution(task, step)
    has_setup = step is not None and step.setup
    setup_budget = _first(settings.step_setup_timeout_s, budget) if has_setup else None
    return TurnPlan(
        index=index,
        name=step.name if step is not None else task.id,
        instruction=instruction,
        agent_user=_first(own.agent.user, config.agent.user),
        agent_budget_seconds=budget,
        verifier=_verifier(task, settings, step),
        artifacts=artifact_plans(config.artifacts, own.artifacts),
        hooks=(
            *_hooks(config.verifier.collect, "task"),
            *_hooks(own.verifier.collect, "step"),
        ),
        workdir=step.workdir if step is not None else None,
        setup_budget_seconds=setup_budget,
        has_setup=has_setup,
        healthcheck=_health_check(own.healthcheck),
        solution=solution,
        has_solve_script=has_script,
        reference_answer=task.answer if step is None else None,
        min_reward=own.min_reward,
        network=_phase_network(config, "[agent]", own.agent, config.agent),
    )


def _phase_network(
    config: TaskConfig, table: str, *phases: NetworkTable
) -> NetworkPlan | None:
    """The network of a phase, if it is another than the sandbox's (spec 3.12, Q21)."""
    declared = next((item for item in phases if item.network_mode is not None), None)
    if declared is None or declared.network_mode is None:
        return None
    own = config.environment
    hosts = declared.allowed_hosts or ()
    if declared.network_mode == (own.network_mode or "public") and set(hosts) == set(
        own.allowed_hosts or ()
    ):
        return None
    return NetworkPlan(declared.network_mode, hosts, table)


def apply_template(template: Path, instruction: str) -> str:
    """The instruction wrapped by a template file with ``{instruction}`` in it.

    Raises:
        SettingsError: the file cannot be read or lacks the placeholder.
    """
    try:
        text = template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"prompt template {template} cannot be read: {error}"
        ) from None
    if PLACEHOLDER not in text:
        raise SettingsError(
            f"prompt template {template} lacks the placeholder {PLACEHOLDER};"
            " write it where the task's instruction goes"
        )
    # Not str.format: braces elsewhere in the template are text.
    return text.replace(PLACEHOLDER, instruction)


def timeout_multiplier(task: Task, settings: Settings) -> float:
    """The run's multiplier times the dataset's (spec 4)."""
    dataset = task.dataset.timeout_multiplier if task.dataset is not None else 1.0
    return settings.timeout_multiplier * dataset


def _first(value: Value | None, fallback: Value) -> Value:
    return fallback if value is None else value


def _scaled(seconds: float | None, task: Task, settings: Settings) -> float | None:
    return None if seconds is None else seconds * timeout_multiplier(task, settings)


def _verifier(task: Task, settings: Settings, step: StepFiles | None) -> VerifierPlan:
    config = task.config
    own = step.config.verifier if step is not None else config.verifier
    step_config = step.config if step is not None else None
    mode = used_mode(
        config,
        step_config,
        separate_for_artifacts=settings.separate_verifier_for_artifacts,
    )
    # A step never falls back to [verifier].timeout_sec (spec 3.5).
    timeout = _first(own.timeout_sec, DEFAULT_VERIFIER_TIMEOUT_SEC)
    environment: EnvironmentPlan | None = None
    image_tests_win = False
    if mode == "separate":
        environment, is_own = _verifier_environment(task, step_config)
        image_tests_win = step is None and is_own
    return VerifierPlan(
        mode=mode,
        budget_seconds=timeout * timeout_multiplier(task, settings),
        tests=_tests(task, step),
        python_verifier=task.verifier_py if step is None else None,
        image_tests_win=image_tests_win,
        user=_first(own.user, config.verifier.user),
        env={**config.verifier.env, **own.env},
        environment=environment,
        network=_phase_network(config, "[verifier]", own, config.verifier)
        if mode == "shared"
        else None,
    )


def _tests(task: Task, step: StepFiles | None) -> tuple[InputFolder, ...]:
    layers: list[InputFolder] = []
    if task.tests is not None:
        layers.append(_input(task, task.tests, "tests"))
    if step is not None and step.tests is not None:
        layers.append(_input(task, step.tests, f"steps/{step.name}/tests"))
    return tuple(layers)


def _input(task: Task, path: Path, name: str) -> InputFolder:
    return InputFolder(path, task.excluded.get(name, frozenset()))


def _solution(task: Task, step: StepFiles | None) -> tuple[InputFolder | None, bool]:
    """The turn's solution folder, chosen by folder and not by file (spec 13)."""
    if step is not None and step.solution is not None:
        name = f"steps/{step.name}/solution"
        return _input(task, step.solution, name), step.has_solve_script
    if task.solution is not None:
        return _input(task, task.solution, "solution"), task.has_solve_script
    return None, False


def _agent_environment(task: Task) -> EnvironmentPlan:
    config = task.config.environment
    has_image = bool(config.docker_image)
    has_recipe = task.has_dockerfile or task.compose_file is not None
    return replace(
        _environment(task, config, "[environment]"),
        build_context=task.environment
        if task.has_dockerfile and not has_image
        else None,
        files=None if has_recipe else task.environment,
        compose_file=task.compose_file,
        variables=_variables(task),
    )


def _variables(task: Task) -> tuple[str, ...]:
    if task.compose_file is None:
        return ()
    text = task.compose_file.read_text(encoding="utf-8", errors="replace")
    return variable_names(text)


def _verifier_environment(
    task: Task, step: StepConfig | None
) -> tuple[EnvironmentPlan, bool]:
    """The verifier's sandbox, and whether its image is its own (spec 8.3)."""
    declared = verifier_environment(task.config, step)
    from_tests = builds_from_tests(
        task.config, step, has_tests_dockerfile=task.has_tests_dockerfile
    )
    if declared.is_own or from_tests:
        plan = _environment(task, declared.config, declared.table)
        if from_tests:
            plan = replace(plan, image=None, build_context=task.tests)
    else:
        plan = _agent_environment(task)

    # The verification phase is all that ever runs here, so its network is this one's.
    verifier = task.config.verifier
    if verifier.network_mode is not None:
        plan = replace(
            plan,
            network=verifier.network_mode,
            allowed_hosts=verifier.allowed_hosts or (),
        )
    return plan, bool(from_tests or (declared.is_own and declared.config.docker_image))


def _environment(task: Task, config: EnvironmentConfig, table: str) -> EnvironmentPlan:
    dataset = task.dataset
    factor = dataset.resource_multiplier if dataset is not None else 1.0
    return EnvironmentPlan(
        image=config.docker_image or None,
        workdir=config.workdir or None,
        env=config.env,
        table=table,
        network=config.network_mode or "public",
        allowed_hosts=config.allowed_hosts or (),
        cpus=config.cpus * factor if config.cpus else None,
        memory_mib=math.ceil(config.memory_mb * factor) if config.memory_mb else None,
        storage_mib=math.ceil(config.storage_mb * factor)
        if config.storage_mb
        else None,
        start_timeout_seconds=config.build_timeout_sec,
        platform=dataset.platform if dataset is not None else None,
    )


def _hooks(
    hooks: tuple[CollectHookConfig, ...], origin: Origin
) -> tuple[CollectHookPlan, ...]:
    return tuple(
        CollectHookPlan(
            command=hook.command,
            service=hook.service,
            timeout_seconds=hook.timeout_sec,
            user=hook.user,
            origin=origin,
        )
        for hook in hooks
    )


def _health_check(config: HealthCheckConfig | None) -> HealthCheckPlan | None:
    if config is None:
        return None
    return HealthCheckPlan(
        command=config.command,
        interval_seconds=max(0.0, config.interval_sec),
        timeout_seconds=max(0.0, config.timeout_sec),
        start_period_seconds=max(0.0, config.start_period_sec),
        start_interval_seconds=max(0.0, config.start_interval_sec),
        retries=max(1, config.retries),
    )
