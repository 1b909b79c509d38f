"""What a file names in its bundle is there and fits (spec 13, 5; 1.3; 5.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.entries import (
    FOLDERS,
    LOCAL_VERSION,
    AgentEntry,
    ArtifactEntry,
    Entry,
    EntryKind,
    EnvEntry,
)
from pytest_harbor.tasks.steps.model import (
    DeployAgent,
    DeployEnv,
    EnvOutcomeVerifier,
    LoadArtifact,
    RubricsVerifier,
)
from pytest_harbor.tasks.steps.read_steps import UNKNOWN, Steps
from pytest_harbor.tasks.steps.step import Step

RULE = "13.5"
Found = TypeVar("Found", EnvEntry, AgentEntry, ArtifactEntry)
PLACEHOLDER = re.compile(r"<[^<>]+>")


class Load(NamedTuple):
    """A load step that replaces the data of an env's server."""

    step: LoadArtifact
    env_id: str


def check_entries(steps: Steps, bundle: Bundle, found: Findings) -> None:
    """Report entries of the bundle that are missing, unusable, or not what is needed."""
    checker = _Checker(steps, bundle, found)
    for step in steps.steps:
        match step:
            case DeployEnv():
                checker.deploy_env(step)
            case DeployAgent():
                checker.agent(
                    step, "a2a_agent_id", step.a2a_agent_id, step.a2a_agent_version
                )
            case RubricsVerifier():
                checker.agent(step, "judge_a2a_agent_id", step.judge_a2a_agent_id, None)
            case LoadArtifact():
                checker.load_artifact(step)
            case EnvOutcomeVerifier():
                checker.outcome_check(step)
    checker.doubt_replacements()


class _Checker:
    def __init__(self, steps: Steps, bundle: Bundle, found: Findings) -> None:
        self.steps = steps
        self.bundle = bundle
        self.found = found
        self.loads: list[Load] = []

    def problem(self, step: Step, field: str, what: str) -> None:
        self.found.problem(self.steps.where(step.position, field), what, RULE)

    def deploy_env(self, step: DeployEnv) -> None:
        env = self._entry("env", self.bundle.env, step, "env_id", step.env_id)
        if env is None:
            return
        if env.url is not None:
            what = f"'{step.env_id}' already runs at {env.url}; name it in env_ids"
            self.problem(step, "env_id", f"{what} and do not deploy it")
        self._check_version(step, "env_version", "env", env, step.env_version)

    def agent(
        self, step: Step, field: str, agent_id: str | None, version: int | None
    ) -> None:
        """An agent of the bundle; one that is not may be registered (preflight)."""
        if agent_id is not None:
            agent = self._entry(
                "agent", self.bundle.agent, step, field, agent_id, may_be_elsewhere=True
            )
            self._check_version(step, "a2a_agent_version", "agent", agent, version)

    def load_artifact(self, step: LoadArtifact) -> None:
        find = self.bundle.artifact
        listed = step.artifact_id is None
        for number, source in enumerate(step.sources):
            field = f"artifacts[{number}]" if listed else "artifact"
            id_field = f"{field}.id" if listed else "artifact_id"
            version_field = f"{field}.version" if listed else "artifact_version"
            artifact = self._entry("artifact", find, step, id_field, source.id)
            if artifact is None:
                continue
            self._check_version(
                step, version_field, "artifact", artifact, source.version
            )
            if artifact.type == "docker_image":
                what = f"'{source.id}' is an image, which no step loads"
                self.problem(step, id_field, what)
            elif artifact.type == "environment" and step.env_id is not None:
                self._check_name(step, id_field, artifact, step.env_id)
                self.loads.append(Load(step, step.env_id))

    def outcome_check(self, step: EnvOutcomeVerifier) -> None:
        field = "file_artifact_id"
        find = self.bundle.artifact
        artifact = self._entry("artifact", find, step, field, step.file_artifact_id)
        if artifact is None:
            return
        if artifact.type != "file":
            what = f"'{step.file_artifact_id}' is no file artifact ({artifact.type})"
            self.problem(step, field, what)
        version = step.file_artifact_version
        self._check_version(
            step, "file_artifact_version", "artifact", artifact, version
        )

    def doubt_replacements(self) -> None:
        """Each load replaces what an earlier one put into the same server (spec 5.1)."""
        for index, second in enumerate(self.loads):
            for first in self.loads[:index]:
                if first.env_id == second.env_id:
                    self.found.warn(self._replacement(first.step, second))
                    break

    def _replacement(self, first: LoadArtifact, second: Load) -> str:
        step = second.step
        what = f"also loads into env '{second.env_id}', and each load replaces the data"
        if first.position == step.position:
            return f"{self.steps.where(step.position)}: {what} of the one before"
        other = f"step {first.position} '{first.id}'"
        if first.id in self.steps.above(step):
            what += f": nothing is left of {other}"
        else:
            what += f": the order with {other} is open; add it to depends_on"
        return f"{self.steps.where(step.position)}: {what}"

    def _entry(
        self,
        kind: EntryKind,
        look_up: Callable[[str], Found | None],
        step: Step,
        field: str,
        name: str,
        *,
        may_be_elsewhere: bool = False,
    ) -> Found | None:
        """The usable entry of that name; else it is told what is wrong."""
        if name == UNKNOWN:
            return None
        try:
            entry = look_up(name)
        except TaskLoadError as error:
            self.found.add(error.problems)  # once, however many steps name it
            return None
        if entry is not None:
            for line in entry.warnings:
                self.found.warn(line)
        elif not may_be_elsewhere:
            self._missing(step, field, kind, name)
        return entry

    def _check_name(
        self, step: LoadArtifact, field: str, artifact: ArtifactEntry, env_id: str
    ) -> None:
        """An environment artifact is for the env that it names (spec 5.1)."""
        try:
            env = self.bundle.env(env_id)
        except TaskLoadError:
            return  # told where it is deployed
        name = env.environment_name if env is not None else None
        if name is not None and name != artifact.environment_name:
            self.problem(
                step,
                field,
                f"'{artifact.name}' is for the environment"
                f" '{artifact.environment_name}', and env '{env_id}' is '{name}'",
            )

    def _check_version(
        self,
        step: Step,
        field: str,
        kind: EntryKind,
        entry: Entry | None,
        pin: int | None,
    ) -> None:
        if entry is not None and pin not in (None, LOCAL_VERSION):
            self.problem(
                step,
                field,
                f"{kind} '{entry.name}' is a folder, whose one version is"
                f" {LOCAL_VERSION}, not {pin}; remove it",
            )

    def _missing(self, step: Step, field: str, kind: EntryKind, name: str) -> None:
        what = f"no {kind} '{name}' in the bundle"
        if near := self.bundle.near(kind, name):
            what += f" (did you mean '{near}'?)"
        if PLACEHOLDER.search(name):
            what += "; is it a placeholder that no seed fills?"
        elif stray := next(self._strays(kind, name), None):
            what += f"; {stray} is a file, put it into a folder {FOLDERS[kind]}/{name}"
        self.problem(step, field, what)

    def _strays(self, kind: EntryKind, name: str) -> Iterator[str]:
        """Files that lie where their folder should be."""
        folder = self.bundle.root / FOLDERS[kind]
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.is_file() and name in (path.name, path.stem):
                    yield f"{FOLDERS[kind]}/{path.name}"
