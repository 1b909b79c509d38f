"""What the folders of a bundle hold: envs, agents, artifacts, skills (spec 1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

EntryKind: TypeAlias = Literal["env", "agent", "artifact", "skill"]
ArtifactType: TypeAlias = Literal[
    "file", "file_artifact_universe", "environment", "docker_image"
]

FOLDERS: Mapping[EntryKind, str] = {
    "env": "envs",
    "agent": "agents",
    "artifact": "artifacts",
    "skill": "skills",
}
LOCAL_VERSION = 1  # spec 1.3: what lies in a folder has one version


@dataclass(frozen=True)
class ServerEntry:
    """What is started as a server: an env or an agent."""

    name: str
    """Its id."""
    folder: Path
    dockerfile: Path | None = None
    """What its image is built from; ``folder`` is the build context."""
    image: str | None = None
    """A ready image's reference, instead."""
    command: tuple[str, ...] = ()
    """argv that starts the server in a sandbox that builds no image."""
    requirements: Path | None = None
    """``requirements.txt``: packages that ``command`` needs."""
    warnings: tuple[str, ...] = ()
    """Likely mistakes, with the file."""


@dataclass(frozen=True)
class EnvEntry(ServerEntry):
    """An env: ``envs/<name>/``."""

    environment_name: str | None = None
    """Name that artifacts must have; ``None``: the one on the server's card."""
    url: str | None = None
    """MCP URL of an env that already runs; it is named in ``env_ids`` and not deployed."""


@dataclass(frozen=True)
class AgentEntry(ServerEntry):
    """An A2A agent: ``agents/<name>/``."""


@dataclass(frozen=True)
class ArtifactEntry:
    """An artifact: ``artifacts/<name>/``."""

    name: str
    """Its id."""
    folder: Path
    type: ArtifactType
    files: tuple[str, ...] = ()
    """Paths of its files below ``folder``, sorted, with forward slashes; of a universe
    those it consists of."""
    environment_name: str | None = None
    """Of an environment artifact: the env it is for."""
    file: Path | None = None
    """Of a file or an environment artifact: its one file, which may lie in another
    artifact's folder."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class SkillEntry:
    """A skill: ``skills/<name>/``."""

    name: str
    """Its id."""
    folder: Path
    description: str
    """From the front matter of its ``SKILL.md``."""
    text: str
    """The whole ``SKILL.md``."""
    warnings: tuple[str, ...] = ()


Entry: TypeAlias = EnvEntry | AgentEntry | ArtifactEntry | SkillEntry
