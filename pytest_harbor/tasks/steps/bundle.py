"""A bundle folder: what the steps of a task name, by id (spec 1.2)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.steps.aliases import Aliases, read_aliases
from pytest_harbor.tasks.steps.entries import (
    FOLDERS,
    AgentEntry,
    ArtifactEntry,
    Entry,
    EntryKind,
    EnvEntry,
    SkillEntry,
)
from pytest_harbor.tasks.steps.entry_files import EntryReader

# Installed packages offer bundles under these entry points, as ``name = "package"``:
# the bundle is the folder ``name`` of the package. The second group is the peer's.
ENTRY_POINTS = ("pytest_harbor.bundles", "agent_env.bundles")
ENTRY_TYPES: dict[EntryKind, type[Entry]] = {
    "env": EnvEntry,
    "agent": AgentEntry,
    "artifact": ArtifactEntry,
    "skill": SkillEntry,
}

Found = TypeVar("Found", EnvEntry, AgentEntry, ArtifactEntry, SkillEntry)


class Bundle:
    """The entries of one bundle folder. Each is read when it is first asked for, once.

    An id is looked up among the folders of this bundle, then the ``registered``
    entries, then the ``others`` (by default the bundles of installed packages), and at
    last among the aliases of this bundle and of the others.
    """

    def __init__(
        self,
        root: Path,
        *,
        registered: Iterable[Entry] = (),
        others: Callable[[], Sequence[Bundle]] | None = None,
    ) -> None:
        self.root = Path(os.path.normpath(root.absolute()))
        self.registered = tuple(registered)
        self._others = others if others is not None else installed_bundles
        self._read: dict[tuple[EntryKind, str], Entry | TaskLoadError] = {}
        self._names: dict[EntryKind, tuple[str, ...]] = {}

    def __repr__(self) -> str:
        return f"Bundle({str(self.root)!r})"

    def env(self, env_id: str) -> EnvEntry | None:
        """The env of that id or alias, or ``None``.

        Raises:
            TaskLoadError: it is there and cannot be used, with every problem.
        """
        return self._entry("env", env_id, EnvEntry)

    def agent(self, agent_id: str) -> AgentEntry | None:
        """The agent of that id or alias, or ``None``. Raises as :meth:`env`."""
        return self._entry("agent", agent_id, AgentEntry)

    def artifact(self, artifact_id: str) -> ArtifactEntry | None:
        """The artifact of that id, or ``None``. Raises as :meth:`env`."""
        return self._entry("artifact", artifact_id, ArtifactEntry)

    def skill(self, name: str) -> SkillEntry | None:
        """The skill of that name, or ``None``. Raises as :meth:`env`."""
        return self._entry("skill", name, SkillEntry)

    def names(self, kind: EntryKind) -> tuple[str, ...]:
        """The names of the folders of a kind, sorted."""
        if kind not in self._names:
            self._names[kind] = tuple(sorted(_folders(self.root / FOLDERS[kind])))
        return self._names[kind]

    def near(self, kind: EntryKind, name: str) -> str | None:
        """The closest id or alias of that kind, for a message."""
        known = [*self.names(kind), *self._aliases.names(kind)]
        known += [e.name for e in self.registered if isinstance(e, ENTRY_TYPES[kind])]
        for other in self._others():
            known += [*other.names(kind), *other._aliases.names(kind)]  # noqa: SLF001
        near = get_close_matches(name, known, n=1, cutoff=0.6)
        return near[0] if near else None

    @cached_property
    def _aliases(self) -> Aliases:
        kinds: tuple[EntryKind, ...] = ("agent", "env")
        return read_aliases(self.root, {kind: self.names(kind) for kind in kinds})

    def _entry(self, kind: EntryKind, name: str, model: type[Found]) -> Found | None:
        key = (kind, name)
        if key not in self._read:
            try:
                entry = self._looked_up(kind, name, model)
            except TaskLoadError as error:
                self._read[key] = error
                raise
            if entry is None:
                return None
            self._read[key] = entry
        known = self._read[key]
        if isinstance(known, TaskLoadError):
            raise TaskLoadError(known.folder, known.problems)
        assert isinstance(known, model)
        return known

    def _looked_up(
        self, kind: EntryKind, name: str, model: type[Found]
    ) -> Found | None:
        if name in self.names(kind):
            entry = getattr(EntryReader(self.root, kind, name), kind)()
            assert isinstance(entry, model)
            return entry
        for registered in self.registered:
            if isinstance(registered, model) and registered.name == name:
                return registered
        for other in self._others():
            if name in other.names(kind):
                return other._entry(kind, name, model)  # noqa: SLF001
        for bundle in (self, *self._others()):
            if folder := bundle._aliases.folder(kind, name):  # noqa: SLF001
                return bundle._entry(kind, folder, model)  # noqa: SLF001
        if self._aliases.problems and kind in ("env", "agent"):
            # The alias may be one of those that could not be read.
            raise TaskLoadError(str(self.root), self._aliases.problems)
        return None


def _folders(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith((".", "__")) and entry.is_dir():
                    yield entry.name
    except (FileNotFoundError, NotADirectoryError):
        return


@cache
def installed_bundles() -> tuple[Bundle, ...]:
    """The bundles that installed packages offer, by the names of their entry points."""
    points = [
        point
        for group in ENTRY_POINTS
        for point in importlib.metadata.entry_points(group=group)
    ]
    roots: list[Path] = []
    for point in sorted(points, key=lambda point: point.name):
        top, *below = point.module.split(".")
        spec = importlib.util.find_spec(top)  # finds a package without importing it
        for location in (spec.submodule_search_locations or ()) if spec else ():
            root = Path(location, *below, point.name)
            if root.is_dir() and root not in roots:
                roots.append(root)
    return tuple(Bundle(root, others=tuple) for root in roots)
