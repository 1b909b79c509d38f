"""Refuse keys that contradict each other, the folder, or this runner (spec 19.6)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.folder.artifact_paths import protected_by
from pytest_harbor.tasks.folder.compose_services import service_names
from pytest_harbor.tasks.folder.dataset import TASK_FILE
from pytest_harbor.tasks.folder.layout import (
    COMPOSE_FILE,
    Layout,
)
from pytest_harbor.tasks.folder.model import (
    MAIN_SERVICE,
    ArtifactConfig,
    CollectHookConfig,
    EnvironmentConfig,
    StepConfig,
    TaskConfig,
    VerifierConfig,
)
from pytest_harbor.tasks.folder.modes import (
    builds_from_tests,
    declared_mode,
    verifier_environment,
)
from pytest_harbor.tasks.folder.names import is_label


def check_config(config: TaskConfig, layout: Layout, found: Findings) -> None:
    """Refuse a task for its keys; for its files, :mod:`.layout_checks` does."""
    _check_label(config, found)
    _check_supported(config, found)
    _check_mode_conflicts(config, found)
    _check_networks(config, found)
    _check_separate(config, layout, found)
    _check_services(config, layout, found)
    _check_protected(config, found)
    if config.environment.docker_image and layout.has_dockerfile:
        found.note(
            f"{TASK_FILE}: [environment].docker_image is used, environment/Dockerfile is not"
        )


def _check_label(config: TaskConfig, found: Findings) -> None:
    if config.task is None:
        return
    if config.task.name is None:
        found.warn(f"{TASK_FILE}: [task].name is missing (org/name)")
    elif not is_label(config.task.name):
        found.warn(f"{TASK_FILE}: [task].name: '{config.task.name}' is not org/name")


def _environments(config: TaskConfig) -> Iterator[tuple[str, EnvironmentConfig]]:
    yield "[environment]", config.environment
    if config.verifier.environment is not None:
        yield "[verifier.environment]", config.verifier.environment
    for step in config.steps:
        if step.verifier.environment is not None:
            yield (
                f"step '{step.name}': [steps.verifier.environment]",
                step.verifier.environment,
            )


def _check_supported(config: TaskConfig, found: Findings) -> None:
    for table, environment in _environments(config):
        unsupported = {
            'os = "windows"': environment.os == "windows",
            "gpus": bool(environment.gpus),
            "tpu": environment.tpu is not None,
        }
        for key in filter(unsupported.__getitem__, unsupported):
            found.problem(
                f"{TASK_FILE}: {table}.{key.split()[0]}",
                f"{key} is not supported by this runner",
                "X28",
            )
    for label, verifier in _verifiers(config):
        if verifier.inputs is not None:
            found.problem(
                f"{TASK_FILE}: {label}.inputs",
                "sidecar inputs are not supported; remove it",
                "X28",
            )


def _verifiers(config: TaskConfig) -> Iterator[tuple[str, VerifierConfig]]:
    yield "[verifier]", config.verifier
    for step in config.steps:
        yield f"step '{step.name}': [steps.verifier]", step.verifier


def _check_mode_conflicts(config: TaskConfig, found: Findings) -> None:
    for label, verifier in _verifiers(config):
        if verifier.environment_mode == "shared" and verifier.environment is not None:
            is_task = label == "[verifier]"
            table = (
                "[verifier.environment]" if is_task else "[steps.verifier.environment]"
            )
            found.problem(
                f"{TASK_FILE}: {label if is_task else label.split(': ')[0]}",
                f'environment_mode = "shared" conflicts with {table}; remove one',
                "X13" if is_task else "X12",
            )


def _check_networks(config: TaskConfig, found: Findings) -> None:
    shared = [
        step.name for step in config.steps if declared_mode(config, step) == "shared"
    ]
    if config.verifier.restricts_network and shared:
        found.problem(
            f"{TASK_FILE}: [verifier].network_mode",
            f"[verifier] restricts the network but step '{shared[0]}' verifies in the"
            ' agent\'s sandbox; set environment_mode = "separate"',
            "X16",
        )
    for step in config.steps:
        where = f"{TASK_FILE}: step '{step.name}'"
        if step.agent.restricts_network:
            found.problem(
                where,
                "network settings on [steps.agent] are not supported;"
                " set them in [environment]",
                "X14",
            )
        environment = step.verifier.environment
        for table, restricts in (
            ("[steps.verifier]", step.verifier.restricts_network),
            (
                "[steps.verifier.environment]",
                environment is not None and environment.restricts_network,
            ),
        ):
            if restricts:
                found.problem(
                    where,
                    f"network settings on {table} are not supported;"
                    " set them in [verifier.environment]",
                    "X15",
                )


def _check_separate(config: TaskConfig, layout: Layout, found: Findings) -> None:
    steps: tuple[StepConfig | None, ...] = config.steps or (None,)
    refused: set[str] = set()
    for step in steps:
        if declared_mode(config, step) != "separate":
            continue
        if step is not None:
            has_own_tests = layout.steps[step.name].tests is not None
            if text := own_tests_problem(config, step, has_own_tests):
                found.problem(f"{TASK_FILE}: step '{step.name}'", text, "X11")
                continue
        if (table := _without_image(config, step, layout)) and table not in refused:
            refused.add(table)
            found.problem(
                f"{TASK_FILE}: {table}",
                "separate verification needs an image: set docker_image in it",
                "X24",
            )


def own_tests_problem(
    config: TaskConfig, step: StepConfig, has_own_tests: bool
) -> str | None:
    """Why a step that verifies separately cannot have tests of its own (X11)."""
    if has_own_tests and not verifier_environment(config, step).config.docker_image:
        return (
            f"step '{step.name}' verifies separately with its own tests/;"
            " set docker_image in its verifier environment"
        )
    return None


def _without_image(
    config: TaskConfig, step: StepConfig | None, layout: Layout
) -> str | None:
    """The table that should have named the verifier's image (X24), or ``None``.

    A copy of ``[environment]`` has what the task has. A table of its own needs an
    image only where the task runs in containers at all: the local sandbox has none.
    """
    environment = verifier_environment(config, step)
    if not environment.is_own or environment.config.docker_image:
        return None
    in_containers = (
        config.environment.docker_image
        or layout.has_dockerfile
        or layout.compose_file is not None
    )
    if not in_containers or builds_from_tests(
        config, step, has_tests_dockerfile=layout.has_tests_dockerfile
    ):
        return None
    return environment.table


def _check_services(config: TaskConfig, layout: Layout, found: Findings) -> None:
    """Refuse sidecars that the Compose file does not define (X26)."""
    services = chain(
        ((_artifacts_of(step), entry.service) for step, entry in _artifacts(config)),
        ((where, hook.service) for where, hook in _hooks(config)),
    )
    named = {service: where for where, service in services if service != MAIN_SERVICE}
    if not named:
        return
    defined: frozenset[str] | None = frozenset()
    if layout.compose_file is not None:
        text = layout.compose_file.read_text(encoding="utf-8", errors="replace")
        defined = service_names(text)
    if defined is None:
        return
    for service, where in named.items():
        if service not in defined:
            found.problem(
                f"{TASK_FILE}: {where}",
                f"service '{service}' is not defined in environment/{COMPOSE_FILE}",
                "X26",
            )


def _artifacts(config: TaskConfig) -> Iterator[tuple[str | None, ArtifactConfig]]:
    """Each entry with the name of its step; ``None`` for the task's own."""
    yield from ((None, entry) for entry in config.artifacts)
    for step in config.steps:
        yield from ((step.name, entry) for entry in step.artifacts)


def _artifacts_of(step: str | None) -> str:
    return "artifacts" if step is None else f"step '{step}': artifacts"


def _hooks(config: TaskConfig) -> Iterator[tuple[str, CollectHookConfig]]:
    yield from (("[[verifier.collect]]", hook) for hook in config.verifier.collect)
    for step in config.steps:
        where = f"step '{step.name}': [[steps.verifier.collect]]"
        yield from ((where, hook) for hook in step.verifier.collect)


def _check_protected(config: TaskConfig, found: Findings) -> None:
    """Refuse artifacts that overlap the runner's own folders (spec 7, Q10)."""
    steps: tuple[StepConfig | None, ...] = config.steps or (None,)
    separate = [step for step in steps if declared_mode(config, step) == "separate"]
    for name, entry in _artifacts(config):
        folder = _overlap(config, entry)
        if folder is None:
            continue
        where = f"{TASK_FILE}: {_artifacts_of(name)}"
        text = f"{entry.source}: overlaps {folder}, which belongs to the runner"
        if any(step is None or name in (None, step.name) for step in separate):
            found.problem(
                where,
                f"{text}; a separate verifier cannot take it, collect another path",
                "X19",
            )
        else:
            found.warn(f"{where}: {text}")


def _overlap(config: TaskConfig, entry: ArtifactConfig) -> str | None:
    """The runner's folder that a collected path of ``main`` overlaps, if any."""
    if entry.service != MAIN_SERVICE:
        return None
    return protected_by(entry.source, config.environment.workdir)
