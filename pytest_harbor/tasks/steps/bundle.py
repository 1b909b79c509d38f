"""A bundle folder: what the steps of a task name, by id (spec 1.2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

EntryKind: TypeAlias = Literal["env", "agent", "artifact", "skill"]
ArtifactType: TypeAlias = Literal[
    "file", "file_artifact_universe", "environment", "docker_image"
]

LOCAL_VERSION = 1  # spec 1.3: what lies in a folder has one version


@dataclass(frozen=True)
class EnvEntry:
    """An env: ``envs/<name>/``."""

    name: str
    """Its id."""
    folder: Path
    files: tuple[str, ...] = ()
    """Paths of its files below ``folder``, sorted, with forward slashes."""
    environment_name: str | None = None
    """Name that artifacts must have; ``None``: the one on the server's card."""
    dockerfile: Path | None = None
    """What its image is built from."""
    image: str | None = None
    """A ready image's reference, instead."""
    command: tuple[str, ...] = ()
    """argv that starts the server in a sandbox that builds no image."""
    requirements: Path | None = None
    """``requirements.txt``: packages that ``command`` needs."""
    url: str | None = None
    """MCP URL of an env that already runs; it is named in ``env_ids`` and not deployed."""


@dataclass(frozen=True)
class AgentEntry:
    """An A2A agent: ``agents/<name>/``. Fields as of :class:`EnvEntry`."""

    name: str
    folder: Path
    files: tuple[str, ...] = ()
    dockerfile: Path | None = None
    image: str | None = None
    command: tuple[str, ...] = ()
    requirements: Path | None = None


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


class Bundle:
    """The entries of one bundle folder. Each is read when it is first asked for."""

    root: Path

    def env(self, env_id: str) -> EnvEntry | None:
        """The env of that id or alias, or ``None``.

        Raises:
            TaskLoadError: it is there and cannot be used, with every problem.
        """
        raise NotImplementedError

    def agent(self, agent_id: str) -> AgentEntry | None:
        """The agent of that id or alias, or ``None``. Raises as :meth:`env`."""
        raise NotImplementedError

    def artifact(self, artifact_id: str) -> ArtifactEntry | None:
        """The artifact of that id, or ``None``. Raises as :meth:`env`."""
        raise NotImplementedError

    def skill(self, name: str) -> SkillEntry | None:
        """The skill of that name, or ``None``. Raises as :meth:`env`."""
        raise NotImplementedError

    def near(self, kind: EntryKind, name: str) -> str | None:
        """The closest id or alias of that kind, for a message."""
        raise NotImplementedError
