"""Reads the folder of one env, agent, artifact or skill (spec 1.2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import AfterValidator, PlainValidator, Strict
from pydantic_core import ErrorDetails

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.folder.inputs import is_endless, is_inside
from pytest_harbor.tasks.steps.entries import (
    FOLDERS,
    AgentEntry,
    ArtifactEntry,
    ArtifactType,
    EntryKind,
    EnvEntry,
    SkillEntry,
)
from pytest_harbor.tasks.steps.values import HttpUrl, Id, Record, refused
from pytest_harbor.tasks.toml_text import parse
from pytest_harbor.tasks.validation import TOML_WORDS, KeyPath, message, read_model

DOCKERFILE = "Dockerfile"
REQUIREMENTS = "requirements.txt"
SKILL_FILE = "SKILL.md"
ENV_FILE = "env.toml"
AGENT_FILE = "agent.toml"
ARTIFACT_FILE = "artifact.toml"

RULE = "13.5"  # the check of the specification that these problems belong to

# What an operating system or Python leaves behind is nobody's content.
LEFTOVERS = frozenset({".DS_Store", "Thumbs.db", "__pycache__", "desktop.ini"})
LEAVES = "leaves the bundle; copy what it points at"

Config = TypeVar("Config", bound=Record)


class ImageRef(Record):
    """``image = { ref = "registry/img:tag" }``."""

    ref: Id
    """A ready image."""


def _image(value: object) -> str | ImageRef:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, dict) and isinstance(value.get("ref"), str) and value["ref"]:
        return ImageRef(ref=value["ref"])
    raise refused('must be the name of a Dockerfile, or { ref = "registry/image:tag" }')


def _command(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not value[0]:
        raise refused("must start with a program")
    return value


Image: TypeAlias = Annotated[str | ImageRef, PlainValidator(_image)]
Command: TypeAlias = Annotated[tuple[str, ...], Strict(False), AfterValidator(_command)]


class ServerConfig(Record):
    """``agent.toml``, and what ``env.toml`` has in common with it."""

    image: Image | None = None
    """A Dockerfile in the folder, or a ready image."""
    command: Command = ()
    """argv that starts the server where no image is built."""
    type: str | None = None
    """Kind of server."""


class EnvConfig(ServerConfig):
    """``env.toml``."""

    type: Literal["mcp_server"] | None = None
    """The only kind there is."""
    environment_name: Id | None = None
    """Name that artifacts must have; unset: the server's own."""
    env_provider_type: Literal["gateway", "server"] | None = None
    """Accepted; here it is always one server in one sandbox."""
    url: HttpUrl | None = None
    """MCP URL of a server that already runs."""


class ArtifactConfig(Record):
    """``artifact.toml``."""

    type: ArtifactType | None = None
    """Unset: by what the folder holds."""
    environment_name: Id | None = None
    """The env that the data is for."""
    file: Id | None = None
    """File artifact that holds the data."""


class Server(NamedTuple):
    """How an env's or agent's server is started."""

    image: str | None
    dockerfile: Path | None
    command: tuple[str, ...]
    requirements: Path | None


class EntryReader:
    """Reads one entry of a bundle, and collects what is wrong with it."""

    def __init__(self, root: Path, kind: EntryKind, name: str) -> None:
        self.kind = kind
        self.name = name
        self.root = root
        self.label = f"{FOLDERS[kind]}/{name}"
        self.folder = root / self.label
        self.found = Findings()

    def env(self) -> EnvEntry:
        """``envs/<name>/``.

        Raises:
            TaskLoadError: it cannot be used, with every problem. So the others.
        """
        config = self._config(ENV_FILE, EnvConfig)
        server = self._server(ENV_FILE, config, is_live=config.url is not None)
        self._raise()
        return EnvEntry(
            self.name,
            self.folder,
            environment_name=config.environment_name,
            dockerfile=server.dockerfile,
            image=server.image,
            command=server.command,
            requirements=server.requirements,
            url=config.url,
            warnings=self.found.lines,
        )

    def agent(self) -> AgentEntry:
        """``agents/<name>/``."""
        config = self._config(AGENT_FILE, ServerConfig)
        server = self._server(AGENT_FILE, config)
        self._raise()
        return AgentEntry(
            self.name,
            self.folder,
            dockerfile=server.dockerfile,
            image=server.image,
            command=server.command,
            requirements=server.requirements,
            warnings=self.found.lines,
        )

    def artifact(self, *, may_refer: bool = True) -> ArtifactEntry:
        """``artifacts/<name>/``; ``may_refer`` to a file in another one's folder."""
        config = self._config(ARTIFACT_FILE, ArtifactConfig)
        files = self._files()
        kind = config.type or self._inferred(files)
        file = None
        if kind == "environment":
            file = self._payload(config, files) if may_refer else None
            if config.environment_name is None:
                self.problem(ARTIFACT_FILE, "environment_name is missing")
        elif kind == "file":
            file = self._only(files)
        if not (files or config.file or self.found.problems):
            self.problem("", "is empty")
        self._raise()
        return ArtifactEntry(
            self.name,
            self.folder,
            kind,
            files=files,
            environment_name=config.environment_name,
            file=file,
            warnings=self.found.lines,
        )

    def skill(self) -> SkillEntry:
        """``skills/<name>/``."""
        text = ""
        path = self._file(SKILL_FILE)
        if path is None:
            self.problem("", f"needs a {SKILL_FILE}")
        else:
            try:
                text = path.read_text(encoding="utf-8-sig")
            except UnicodeDecodeError as error:
                self.problem(SKILL_FILE, f"is not UTF-8 (byte {error.start})")
        self._raise()
        return SkillEntry(self.name, self.folder, _front_matter(text), text)

    def problem(self, where: str, what: str) -> None:
        """A reason why the entry cannot be used; ``where`` is below its folder."""
        place = f"{self.label}/{where}" if where else self.label
        self.found.problem(place, what, RULE)

    def _raise(self) -> None:
        if self.found.problems:
            raise TaskLoadError(str(self.folder), tuple(self.found.problems))

    def _file(self, name: str) -> Path | None:
        """A file of the folder, or ``None``; it must not lie outside the bundle."""
        path = self.folder / name
        if not path.is_file():
            return None
        if not is_inside(str(path), os.path.realpath(self.root)):
            self.problem(name, LEAVES)
            return None
        return path

    def _config(self, name: str, model: type[Config]) -> Config:
        path = self._file(name)
        if path is None:
            return model()
        raw = parse(path.read_bytes(), f"{self.label}/{name}", self.found, RULE) or {}
        for key in raw:
            if key not in model.model_fields:
                near = get_close_matches(key, model.model_fields, n=1, cutoff=0.7)
                hint = f" (did you mean {near[0]}?)" if near else ""
                self.found.warn(f"{self.label}/{name}: unknown key {key}{hint}")

        def report(detail: ErrorDetails, place: KeyPath, _: object) -> None:
            key = f": {place[0]}" if place else ""
            self.problem(f"{name}{key}", message(detail, TOML_WORDS))

        config, _ = read_model(raw, model, report)
        return config or model()

    def _server(
        self, toml: str, config: ServerConfig, *, is_live: bool = False
    ) -> Server:
        """How the server is started; one that is live already is not."""
        server = Server(
            *self._image(toml, config), config.command, self._file(REQUIREMENTS)
        )
        is_startable = bool(server.image or server.dockerfile or server.command)
        if is_live and is_startable:
            self.problem(
                toml, "url names a server that already runs: remove what starts one"
            )
        elif not (is_live or is_startable or self.found.problems):
            if self._file(toml) is None:
                self.problem("", f"needs a {DOCKERFILE} or an {toml}")
            else:
                self.problem(
                    toml,
                    f"names nothing to start: give command, image or a {DOCKERFILE}",
                )
        return server

    def _image(self, toml: str, config: ServerConfig) -> tuple[str | None, Path | None]:
        """A ready image, or the Dockerfile to build."""
        if isinstance(config.image, ImageRef):
            return config.image.ref, None
        dockerfile = self._file(config.image or DOCKERFILE)
        if config.image is not None and (
            dockerfile is None
            or not is_inside(str(dockerfile), os.path.realpath(self.folder))
        ):
            what = f"'{config.image}' is no Dockerfile in {self.label}"
            self.problem(f"{toml}: image", what)
        return None, dockerfile

    def _files(self) -> tuple[str, ...]:
        """Content files of an artifact, sorted; its ``artifact.toml`` is none."""
        if not is_inside(str(self.folder), os.path.realpath(self.root)):
            self.problem("", LEAVES)
            return ()
        names = sorted(self._walk(str(self.folder), ""))
        return tuple(name for name in names if name != ARTIFACT_FILE)

    def _walk(self, folder: str, prefix: str) -> Iterator[str]:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.name in LEFTOVERS:
                    continue
                if entry.is_symlink() and not self._is_sound(name, entry.path):
                    continue
                if entry.is_dir():
                    yield from self._walk(entry.path, f"{name}/")
                elif entry.is_file():
                    yield name
                else:
                    self.problem(name, "is neither a file nor a folder")

    def _is_sound(self, name: str, path: str) -> bool:
        """Whether a link stays in the bundle and comes to an end."""
        if not is_inside(path, os.path.realpath(self.root)):
            self.problem(name, LEAVES)
        elif is_endless(path):
            self.problem(name, "links form a cycle; remove the link")
        elif not os.path.exists(path):  # noqa: PTH110 - a name of os.scandir
            self.problem(name, "links to nothing")
        else:
            return True
        return False

    def _inferred(self, files: tuple[str, ...]) -> ArtifactType:
        if self._file(DOCKERFILE) is not None:
            return "docker_image"
        is_file = len(files) == 1 and "/" not in files[0]
        return "file" if is_file else "file_artifact_universe"

    def _only(self, files: tuple[str, ...]) -> Path | None:
        if len(files) == 1:
            return self.folder / files[0]
        self.problem("", f"a file artifact holds one file, not {len(files)}")
        return None

    def _payload(self, config: ArtifactConfig, files: tuple[str, ...]) -> Path | None:
        """The file that an environment artifact loads."""
        if config.file is None:
            if len(files) == 1:
                return self.folder / files[0]
            self.problem(
                ARTIFACT_FILE,
                f"an environment artifact needs one file beside it, not {len(files)},"
                ' or file = "<artifact id>"',
            )
            return None
        if files:
            self.problem(
                ARTIFACT_FILE, f"file is given, and {files[0]} lies beside it: keep one"
            )
            return None
        return self._file_of(config.file)

    def _file_of(self, artifact_id: str) -> Path | None:
        """The file of the file artifact of that id."""
        others = {path.name for path in self.folder.parent.iterdir()}
        if artifact_id not in others - {self.name}:
            self.problem(f"{ARTIFACT_FILE}: file", f"no artifact '{artifact_id}'")
            return None
        reader = EntryReader(self.root, "artifact", artifact_id)
        try:
            other = reader.artifact(may_refer=False)
        except TaskLoadError as error:
            self.found.add(error.problems)
            return None
        if other.type != "file":
            what = f"'{artifact_id}' is no file artifact ({other.type})"
            self.problem(f"{ARTIFACT_FILE}: file", what)
        return other.file


def _front_matter(text: str) -> str:
    """The ``description`` of a SKILL.md's front matter, on one line; else empty."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return ""
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, colon, value = line.partition(":")
        if colon and key.strip() == "description":
            return value.strip().strip("\"'")
    return ""
