"""Refusals at seed that the task and the settings decide alone (spec 19.6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_harbor.errors import Problem
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.artifact_paths import protected_by
from pytest_harbor.tasks.folder.checks import own_tests_problem
from pytest_harbor.tasks.folder.model import MAIN_SERVICE
from pytest_harbor.tasks.folder.plan_types import TurnPlan
from pytest_harbor.tasks.folder.task import Task

ORACLE = "oracle"
TOML = "task.toml"


def plan_refusals(
    task: Task, settings: Settings, turns: Sequence[TurnPlan], *, agent: str
) -> tuple[Problem, ...]:
    """Every reason to refuse the episode that needs no provider and no agent object."""
    return (
        *_prior_trajectory(task, agent),
        *_start_fits(settings),
        *_separate(task, turns),
    )


def _prior_trajectory(task: Task, agent: str) -> Iterator[Problem]:
    if task.steps and task.steps[0].trajectory is not None and agent != ORACLE:
        name = task.steps[0].name
        yield Problem(
            f"steps/{name}/trajectory.json",
            f"step '{name}': a seed trajectory.json is not supported; remove it",
            "X31",
        )


def _start_fits(settings: Settings) -> Iterator[Problem]:
    limit = settings.default_episode_timeout_seconds
    start = settings.sandbox_start_timeout_s
    if not settings.enforce_task_timeouts and limit < start:
        yield Problem(
            "",
            "default_episode_timeout_seconds is shorter than one sandbox start"
            f" ({limit:g} s < {start:g} s); raise it",
            "X35",
        )


def _separate(task: Task, turns: Sequence[TurnPlan]) -> Iterator[Problem]:
    """What the load could not know: the mode that the settings chose (Q9, Q24)."""
    in_containers = (
        task.config.environment.docker_image
        or task.has_dockerfile
        or task.compose_file is not None
    )
    for index, turn in enumerate(turns):
        environment = turn.verifier.environment
        if environment is None:
            continue
        step = task.steps[index] if task.steps else None
        if step is not None:
            text = own_tests_problem(task.config, step.config, step.tests is not None)
            if text:
                yield Problem(f"{TOML}: step '{step.name}'", text, "X11")
                continue
        if in_containers and not environment.needs_container:
            yield Problem(
                f"{TOML}: {environment.table}",
                "separate verification needs an image: set docker_image in it",
                "X24",
            )
        for artifact in turn.artifacts:
            folder = (
                protected_by(artifact.source, task.config.environment.workdir)
                if artifact.service == MAIN_SERVICE
                else None
            )
            if folder:
                yield Problem(
                    f"{TOML}: artifacts",
                    f"{artifact.source}: overlaps {folder}, which belongs to the"
                    " runner; a separate verifier cannot take it",
                    "X19",
                )
