"""Where a turn is verified: mode and environment, by the specification's tables (8)."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_harbor.tasks.folder.model import (
    EnvironmentConfig,
    StepConfig,
    TaskConfig,
)
from pytest_harbor.tasks.folder.plan_types import VerifierMode


@dataclass(frozen=True)
class VerifierEnvironment:
    """The declaration that a separate verifier's sandbox is made from (spec 8.3)."""

    config: EnvironmentConfig
    table: str
    """The table it stands in, for messages."""
    is_own: bool
    """False for a copy of ``[environment]``."""


def declared_mode(config: TaskConfig, step: StepConfig | None) -> VerifierMode:
    """The mode that the task's file gives a turn; the first row that matches (8.1)."""
    tables = [config.verifier] if step is None else [step.verifier, config.verifier]
    for table in tables:
        if table.environment_mode is not None:
            return table.environment_mode
        if table.environment is not None:
            return "separate"
    return "shared"


def used_mode(
    config: TaskConfig, step: StepConfig | None, *, separate_for_artifacts: bool
) -> VerifierMode:
    """The mode after ``separate_verifier_for_artifacts``, which wins (8.1, Q9)."""
    declares = bool(config.artifacts or (step is not None and step.artifacts))
    if separate_for_artifacts and declares:
        return "separate"
    return declared_mode(config, step)


def verifier_environment(
    config: TaskConfig, step: StepConfig | None
) -> VerifierEnvironment:
    """Step's table, else the task's, else a copy of ``[environment]`` (8.3)."""
    if step is not None and step.verifier.environment is not None:
        return VerifierEnvironment(
            step.verifier.environment, "[steps.verifier.environment]", is_own=True
        )
    if config.verifier.environment is not None:
        return VerifierEnvironment(
            config.verifier.environment, "[verifier.environment]", is_own=True
        )
    return VerifierEnvironment(config.environment, "[environment]", is_own=False)


def builds_from_tests(
    config: TaskConfig, step: StepConfig | None, *, has_tests_dockerfile: bool
) -> bool:
    """True when ``tests/Dockerfile`` is what a separate verifier's sandbox is built from.

    For a single-step task wherever its verifier names no image of its own; for a step
    only when ``[verifier.environment]`` is what it uses (field notes 3.1).
    """
    if not has_tests_dockerfile:
        return False
    environment = verifier_environment(config, step)
    if environment.is_own and environment.config.docker_image:
        return False
    return step is None or environment.table == "[verifier.environment]"
