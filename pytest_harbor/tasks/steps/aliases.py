"""``aliases.toml``: short names of a bundle's agents and envs (spec 1.2)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_harbor.errors import Problem
from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.steps.entries import FOLDERS, EntryKind
from pytest_harbor.tasks.toml_text import parse

ALIASES_FILE = "aliases.toml"
ALIAS = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")
RULE = "1.2"
KINDS: Mapping[str, EntryKind] = {"agents": "agent", "envs": "env"}


@dataclass(frozen=True)
class Aliases:
    """The aliases of one bundle, and what is wrong with its file."""

    folders: Mapping[EntryKind, Mapping[str, str]] = field(default_factory=dict)
    """Per kind: the folder's name by alias."""
    problems: tuple[Problem, ...] = ()

    def folder(self, kind: EntryKind, alias: str) -> str | None:
        """The folder that ``alias`` stands for."""
        return self.folders.get(kind, {}).get(alias)

    def names(self, kind: EntryKind) -> list[str]:
        """All aliases of a kind."""
        return list(self.folders.get(kind, {}))


def read_aliases(root: Path, names: Mapping[EntryKind, Collection[str]]) -> Aliases:
    """Read a bundle's aliases; ``names`` are the folders it has."""
    path = root / ALIASES_FILE
    if not path.is_file():
        return Aliases()
    found = Findings()
    raw = parse(path.read_bytes(), ALIASES_FILE, found, RULE) or {}
    folders: dict[EntryKind, dict[str, str]] = {"agent": {}, "env": {}}
    for table, entries in raw.items():
        kind = KINDS.get(table)
        if kind is None or not isinstance(entries, dict):
            what = "is no table of this file: it has [agents] and [envs]"
            found.problem(f"{ALIASES_FILE}: {table}", what, RULE)
            continue
        for folder, aliases in entries.items():
            where = f"{ALIASES_FILE}: [{table}].{folder}"
            if folder not in names[kind]:
                what = f"the bundle has no {FOLDERS[kind]}/{folder}"
                found.problem(where, what, RULE)
            if not isinstance(aliases, list):
                found.problem(where, "must be an array of aliases", RULE)
                continue
            for alias in aliases:
                if problem := _problem(alias, folders[kind], names[kind]):
                    found.problem(where, problem, RULE)
                else:
                    folders[kind][alias] = folder
    return Aliases(folders, tuple(found.problems))


def _problem(
    alias: object, taken: Mapping[str, str], names: Collection[str]
) -> str | None:
    if not isinstance(alias, str) or not ALIAS.fullmatch(alias):
        return (
            f"{alias!r} is no alias: use lowercase letters, digits and '-', at most 64,"
            " without '-' at either end"
        )
    if alias in taken:
        return f"'{alias}' already stands for {taken[alias]}"
    return f"'{alias}' is the name of a folder" if alias in names else None
