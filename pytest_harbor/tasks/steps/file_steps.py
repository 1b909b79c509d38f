"""Steps that bring files in and out (spec 5, 9)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Strict

from pytest_harbor.tasks.steps.sources import ArtifactRef, Url, urls_problem
from pytest_harbor.tasks.steps.step import (
    DEFAULT_AGENT_NAME,
    Fault,
    Name,
    NameKind,
    Step,
)
from pytest_harbor.tasks.steps.values import (
    Id,
    SandboxPath,
    Strings,
    Version,
)


class LoadArtifact(Step):
    """``load_artifact``: puts data into an env or files into a sandbox (spec 5)."""

    type: Literal["load_artifact"] = "load_artifact"
    env_id: Id | None = None
    """Target: a deployed env."""
    agent_name: Id | None = None
    """Target: the sandbox of a deployed agent."""
    artifact_id: Id | None = None
    """Source: one artifact."""
    artifact_version: Version | None = None
    """Version of ``artifact_id``; unset: the newest."""
    artifacts: Annotated[tuple[ArtifactRef, ...], Strict(False)] = ()
    """Source: several artifacts, loaded in order."""
    artifact_from_step_id: Id | None = None
    """Source: what that step collected."""
    urls: Annotated[tuple[Url, ...], Strict(False)] = ()
    """Source: downloads."""
    destination_path: SandboxPath | None = None
    """Folder for files; unset: by artifact and target."""

    old_names: ClassVar[Mapping[str, str]] = {
        "collected_artifacts_step_id": "artifact_from_step_id"
    }
    unsupported = frozenset(
        {"container_name", "env_step_id", "sandbox_name", "snapshot_after_load"}
    )

    @property
    def sources(self) -> tuple[ArtifactRef, ...]:
        """The artifacts to load, however the file names them."""
        if self.artifact_id is None:
            return self.artifacts
        return (ArtifactRef(id=self.artifact_id, version=self.artifact_version),)

    def reads(self) -> Iterator[Name]:
        """The target, and the step whose files are handed on."""
        if self.env_id is not None:
            yield Name("env", self.env_id, "env_id")
        if self.agent_name is not None:
            yield Name("agent", self.agent_name, "agent_name")
        if self.artifact_from_step_id is not None:
            yield Name("files", self.artifact_from_step_id, "artifact_from_step_id")

    def faults(self) -> Iterator[Fault]:
        """One target, one kind of source."""
        if self.env_id is None and self.agent_name is None:
            yield Fault("", "has no target: give env_id or agent_name", is_lack=True)
        elif self.env_id is not None and self.agent_name is not None:
            yield Fault("", "has two targets: give either env_id or agent_name")
        yield from self._source_faults()
        if self.urls:
            if self.env_id is not None:
                yield Fault("urls", "are loaded into an agent: give agent_name")
            if problem := urls_problem(self.urls):
                yield Fault("urls", problem)

    def _source_faults(self) -> Iterator[Fault]:
        given = {
            "artifact_id": self.artifact_id is not None,
            "artifacts": bool(self.artifacts),
            "artifact_from_step_id": self.artifact_from_step_id is not None,
            "urls": bool(self.urls),
        }
        names = [name for name, is_given in given.items() if is_given]
        if not names:
            yield Fault(
                "",
                "has no source: give artifact_id, artifacts, artifact_from_step_id"
                " or urls",
                is_lack=True,
            )
        if given["artifact_from_step_id"] and len(names) > 1:
            others = " and ".join(n for n in names if n != "artifact_from_step_id")
            yield Fault(
                "artifact_from_step_id", f"cannot go with {others}; use a step for each"
            )
        if given["artifact_id"] and given["artifacts"]:
            yield Fault("artifact_id", "cannot go with artifacts; put it into the list")
        if self.artifact_version is not None and not given["artifact_id"]:
            yield Fault("artifact_version", "needs artifact_id", is_lack=True)


class CollectArtifacts(Step):
    """``collect_artifacts``: keeps files of an agent's sandbox (spec 9)."""

    type: Literal["collect_artifacts"] = "collect_artifacts"
    agent_name: Id = DEFAULT_AGENT_NAME
    """Whose sandbox."""
    base_path: SandboxPath = "/app/artifact"
    """Folder that relative names start from, without a ``/`` at its end."""
    artifact_paths: Strings = ()
    """Files to take; none: every file below ``base_path``."""
    artifacts_key: str = "expected_artifacts"
    """Seed key whose comma-separated value replaces ``artifact_paths``."""
    exclude_basenames: Strings = ()
    """File names to leave out when the folder is listed."""
    universe_id_suffix: str = ""
    """End of the universe's id; without need here, every step has its own."""

    unsupported = frozenset(
        {"container_name", "env_id", "manifest_step_id", "sandbox_name"}
    )
    written_kinds = frozenset[NameKind]({"files"})

    def reads(self) -> Iterator[Name]:
        """The agent."""
        yield Name("agent", self.agent_name, "agent_name")

    def writes(self) -> Iterator[Name]:
        """The files, by the step's own id."""
        yield Name("files", self.id, "id")

    def faults(self) -> Iterator[Fault]:
        """Relative names stay below ``base_path``."""
        for number, path in enumerate(self.artifact_paths):
            field = f"artifact_paths[{number}]"
            if not path:
                yield Fault(field, "must not be empty")
            elif "://" not in path and is_outside(path):  # URLs are passed over
                yield Fault(field, f"'{path}' leaves base_path")


def is_outside(path: str) -> bool:
    """True when a path is relative and leads out of the folder that it starts from."""
    return posixpath.normpath(path).split("/")[0] == ".."
