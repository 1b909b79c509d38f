"""Configuration files: agents, and what every agent of a run is given.

``[tool.pytest_harbor]`` of ``pyproject.toml`` and a file of its own
(``harbor_agents_file``), which has the same tables at its top, may hold ``agents``,
``mcp_servers`` and ``skills``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, Strict

from pytest_harbor.agents.command.declaration import AgentDeclaration
from pytest_harbor.agents.command.tables import Lookup, read_table
from pytest_harbor.agents.registry import BUILT_IN
from pytest_harbor.errors import SettingsError
from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.folder.keys import dotted
from pytest_harbor.tasks.folder.mcp import mcp_server_plans, merged
from pytest_harbor.tasks.folder.model import McpServerConfig, Table
from pytest_harbor.tasks.folder.plan_types import McpServerPlan
from pytest_harbor.tasks.folder.toml_file import validate
from pytest_harbor.tasks.folder.unknown_keys import unknown_keys
from pytest_harbor.tasks.folder.values import Strings
from pytest_harbor.tasks.toml_text import parse

PYPROJECT: Final = "pyproject.toml"
_IN_PYPROJECT: Final = ("tool", "pytest_harbor")


class _RunTable(Table):
    """The tables of one file."""

    agents: dict[str, Any] = Field(default_factory=dict)
    """Agents by name; each is read when it is asked for."""
    mcp_servers: Annotated[tuple[McpServerConfig, ...], Strict(False)] = ()
    """MCP servers for every agent, beside the task's."""
    skills: Strings = ()
    """Folders of skills for every agent, relative to the file."""


@dataclass(frozen=True)
class _Source:
    """One file, read and checked but for its agents."""

    file: Path
    path: tuple[str, ...]
    """Where the tables lie in it."""
    table: _RunTable


class RunConfig:
    """What the configuration files of a run say about agents."""

    def __init__(self, sources: tuple[_Source, ...] = ()) -> None:
        self._sources = sources

    @property
    def mcp_servers(self) -> tuple[McpServerPlan, ...]:
        """MCP servers for every agent; a task's of the same name gives way (spec 3.8)."""
        return merged(
            server
            for source in self._sources
            for server in mcp_server_plans(
                source.table.mcp_servers,
                f"{source.file.name}: [[{'.'.join((*source.path, 'mcp_servers'))}]]",
            )
        )

    @property
    def skills(self) -> tuple[Path, ...]:
        """Folders on the host whose folders are skills."""
        return tuple(
            source.file.parent / folder
            for source in self._sources
            for folder in source.table.skills
        )

    def declared(self, others: Lookup) -> Mapping[str, Callable[[], AgentDeclaration]]:
        """Declarations by name, each read, and refused, when it is asked for.

        ``others`` finds an agent that a table extends and no table declares.
        """
        return {name: partial(self._read, name, others, ()) for name in self._names()}

    def _names(self) -> Iterator[str]:
        seen: set[str] = set()
        for source in self._sources:
            for name in source.table.agents:
                if name not in seen:
                    seen.add(name)
                    yield name

    def _read(
        self, name: str, others: Lookup, extending: tuple[str, ...]
    ) -> AgentDeclaration:
        """The table of the last file that has one."""
        source = next(
            source for source in reversed(self._sources) if name in source.table.agents
        )

        def base(wanted: str) -> AgentDeclaration:
            chain = (*extending, name)
            # A table may extend the catalogue's agent whose name it takes.
            if wanted == name:
                return others(wanted)
            if wanted in chain:
                loop = " extends ".join((*chain[chain.index(wanted) :], wanted))
                raise SettingsError(f"extends goes in a circle: {loop}")
            if wanted in self._names():
                return self._read(wanted, others, chain)
            return others(wanted)

        return read_table(
            name,
            source.table.agents[name],
            file=source.file,
            path=(*source.path, "agents"),
            base=base,
        )


def read_config(root: Path, agents_file: Path | None = None) -> RunConfig:
    """What ``pyproject.toml`` in ``root`` says, and ``agents_file``, which wins.

    Raises:
        SettingsError: a file cannot be read; every problem, one a line.
    """
    sources = []
    if (root / PYPROJECT).is_file():
        sources.append(_source(root / PYPROJECT, _IN_PYPROJECT))
    if agents_file is not None:
        sources.append(_source(agents_file, ()))
    return RunConfig(tuple(sources))


def _source(file: Path, path: tuple[str, ...]) -> _Source:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"agents file {file} cannot be read: {error.strerror}"
        ) from None
    found = Findings()
    raw: Any = parse(content, file.name, found, "")
    for key in path:
        raw = raw.get(key, {}) if isinstance(raw, dict) else raw
    if raw is not None and not isinstance(raw, dict):
        found.problem(f"{file.name}: [{'.'.join(path)}]", "must be a table")
    table = _RunTable()
    if isinstance(raw, dict):
        for line in unknown_keys({**raw, "agents": {}}, _RunTable, path):
            found.problem(file.name, line)
        table = validate(raw, _RunTable, file.name, found, path)
        for folder in table.skills:
            if not (file.parent / folder).is_dir():
                key = dotted((*path, "skills"))
                found.problem(f"{file.name}: {key}", f"there is no folder {folder!r}")
        for name in sorted(BUILT_IN.keys() & table.agents.keys()):
            where = ".".join((*path, "agents", name))
            found.problem(f"{file.name}: [{where}]", f"{name} is built in; rename it")
    if found.problems:
        raise SettingsError("\n".join(map(str, found.problems)))
    return _Source(file, path, table)
