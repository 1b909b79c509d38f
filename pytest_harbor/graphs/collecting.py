"""Which files of a sandbox are collected, and under which names (spec 9.1, 9.2).

The agent may be root in its sandbox: what commands there say decides only which of its own
files are taken. What comes out is unpacked with the checks of ``sandboxes.transfer``.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.transfer_types import Download, Downloaded, TransferLimits

HINTED_FILES: Final = 200
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SURVEY_SECONDS: Final = 60.0
_RESOLVE: Final = r"""
for p; do
  r=$(readlink -f -- "$p" 2>/dev/null; printf x); r=${r%x}; r=${r%?}
  d=$(readlink -f -- "$(dirname -- "$p")" 2>/dev/null; printf x); d=${d%x}; d=${d%?}
  s=; if [ -f "$r" ]; then s=$(stat -c '%s %a' -- "$r" 2>/dev/null); fi
  printf '%s\000%s\000%s\000' "$r" "$d" "$s"
done
"""
"""For each path: where it leads, where its folder leads, its size and mode; each ends
with NUL."""
_FACTS: Final = 'find "$1" -type f -exec stat -c "%s %a %n" -- {} +'
_LINKS: Final = r"""find "$1" -type l -exec sh -c '
for p; do
  r=$(readlink -f -- "$p" 2>/dev/null; printf x); r=${r%x}; r=${r%?}
  printf "%s\000%s\000" "$p" "$r"
done' sh {} +"""


@dataclass(frozen=True)
class Entry:
    """One entry of ``artifact_paths``."""

    written: str
    path: str
    """Absolute, in the sandbox."""
    name: str
    """In the universe: relative."""


@dataclass(frozen=True)
class Wanted:
    """What the step's ``artifact_paths`` come to; ``refused`` says why for each."""

    entries: tuple[Entry, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class Taken:
    """A file that was copied to this machine."""

    written: str
    """Key in the context: the entry, or the path below ``base_path``."""
    name: str
    """In the universe."""
    file: Path
    size: int
    mode: int


@dataclass(frozen=True)
class Facts:
    """What the sandbox says of a file before it is copied."""

    size: int
    mode: int

    @classmethod
    def parse(cls, text: str) -> Facts | None:
        """Read ``stat``'s ``%s %a``; ``None`` when it says something else."""
        size, _, mode = text.partition(" ")
        if not size.isdecimal() or not re.fullmatch("[0-7]{1,4}", mode):
            return None
        return cls(int(size), int(mode, 8) & 0o777)


@dataclass(frozen=True)
class Caps:
    """What one step may collect, in bytes."""

    file_bytes: int
    step_bytes: int

    def problems(self, sizes: Iterable[tuple[str, int]]) -> dict[str, str]:
        """Which files are too many, in their order, and why."""
        found: dict[str, str] = {}
        total = 0
        for name, size in sizes:
            if size > self.file_bytes:
                found[name] = f"has more than {self.file_bytes} bytes"
            elif total + size > self.step_bytes:
                found[name] = f"passes the {self.step_bytes} bytes of one step"
            else:
                total += size
        return found


@dataclass
class Harvest:
    """What came of a collection."""

    taken: list[Taken] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def is_url(entry: str) -> bool:
    """Whether an entry has a URL scheme; such entries are skipped."""
    return _SCHEME.match(entry) is not None


def wanted(base_path: str, artifact_paths: Sequence[str]) -> Wanted:
    """Where each entry leads, and what it is called; entries with a URL are left out."""
    entries: list[Entry] = []
    refused: dict[str, str] = {}
    names: dict[str, str] = {}
    for written in dict.fromkeys(artifact_paths):
        if is_url(written):
            continue
        path = posixpath.normpath(posixpath.join(base_path, written))
        is_absolute = written.startswith("/")
        if not is_absolute and not is_below(path, base_path):
            refused[written] = f"leads out of {base_path}"
            continue
        top = "/" if is_absolute else posixpath.normpath(base_path)
        name = posixpath.relpath(path, top)
        if problem := name_problem(name):
            refused[written] = problem
        elif name in names:
            refused[written] = f"has the place of '{names[name]}'"
        else:
            names[name] = written
            entries.append(Entry(written, path, name))
    return Wanted(tuple(entries), refused)


def is_below(path: str, folder: str) -> bool:
    """Whether a normal absolute path is inside a folder."""
    folder = posixpath.normpath(folder)
    return folder == "/" or path.startswith(f"{folder}/")


def name_problem(name: str) -> str | None:
    """Why a relative path cannot be a name in a universe, or ``None``."""
    if name in ("", "."):
        return "is a folder"
    if name.startswith("/") or ".." in name.split("/"):
        return "leads out"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "has a name that is no text"
    return None


def link_problem(
    entry: Entry, real: str, real_folder: str, base: str, named: frozenset[str]
) -> str | None:
    """Why a link is not followed, or ``None`` (also for what is no link).

    Followed are links to something below ``base_path``, or to something that the step
    names itself. An absolute entry may go through links to its folder.
    """
    if not real or is_below(real, base) or real in named:
        return None
    own = posixpath.join(real_folder, posixpath.basename(entry.path))
    if entry.written.startswith("/") and real == own:
        return None
    return f"is a link to {real}, which is not below {base}"


async def take_named(
    sandbox: Sandbox,
    entries: Sequence[Entry],
    base_path: str,
    folder: Path,
    limits: TransferLimits,
) -> Harvest:
    """Copy named files to ``folder``. Raises SandboxLost, TransferFailed."""
    harvest = Harvest()
    facts = await _resolved(sandbox, [base_path, *(entry.path for entry in entries)])
    base = (facts[0][0] if facts else "") or base_path
    named = frozenset(
        posixpath.join(known[1], posixpath.basename(entry.path))
        for entry, known in zip(entries, facts[1:], strict=False)
        if entry.written.startswith("/")
    )
    chosen: list[tuple[Entry, str, Facts | None]] = []
    for number, entry in enumerate(entries):
        real, real_folder, text = facts[number + 1] if facts else ("", "", "")
        if problem := link_problem(entry, real, real_folder, base, named):
            harvest.warnings.append(f"{entry.written} {problem}")
        else:
            chosen.append((entry, real or entry.path, Facts.parse(text)))
    downloads = [
        Download(path, folder / str(number))
        for number, (_, path, _) in enumerate(chosen)
    ]
    results = await sandbox.download(downloads, limits=limits)
    for (entry, _, known), download, result in zip(
        chosen, downloads, results, strict=True
    ):
        file = download.target
        if problem := _download_problem(result, file, known):
            harvest.warnings.append(f"{entry.written} {problem}")
        else:
            harvest.taken.append(_taken(entry.written, entry.name, file, known))
    return harvest


async def take_all(
    sandbox: Sandbox,
    base_path: str,
    exclude: frozenset[str],
    folder: Path,
    caps: Caps,
) -> Harvest:
    """Copy every regular file below ``base_path``. Raises as :func:`take_named`.

    A folder that is not there is an empty one. Where not all of it may be collected, one
    file that is too large does not keep the others from it.
    """
    harvest = Harvest()
    limits = TransferLimits(max_bytes=caps.step_bytes)
    facts = await _resolved(sandbox, [base_path])
    base = (facts[0][0] if facts else "") or base_path
    known = await _facts(sandbox, base)
    wished = {
        name: known[name]
        for name in sorted(known)
        if posixpath.basename(name) not in exclude and not name_problem(name)
    }
    if too_much := caps.problems((name, one.size) for name, one in wished.items()):
        names = [name for name in wished if name not in too_much]
        entries = [Entry(name, posixpath.join(base, name), name) for name in names]
        harvest = await take_named(sandbox, entries, base, folder, limits)
        harvest.warnings += [f"{name} {why}" for name, why in too_much.items()]
        return harvest
    (result,) = await sandbox.download([Download(base, folder)], limits=limits)
    if result.status == "failed" and not result.is_missing:
        harvest.warnings.append(f"{base_path}: {result.reason}")
    if result.kind == "file":
        harvest.warnings.append(f"{base_path} is a file; base_path must be a folder")
        return harvest
    found = await anyio.to_thread.run_sync(lambda: dict(_files_below(folder)))
    if result.dropped:
        found |= await _inner_links(sandbox, base, found)
        dropped = [note for note in result.dropped if _name_of(note) not in found]
        harvest.warnings += [f"left out {note}" for note in dropped]
    for name, file in sorted(found.items()):
        if posixpath.basename(name) in exclude:
            continue
        if problem := name_problem(name):
            shown = name.encode(errors="replace").decode()
            harvest.warnings.append(f"{shown} {problem}")
        elif problem := _size_problem(known.get(name), file):
            harvest.warnings.append(f"{name} {problem}")
        else:
            harvest.taken.append(_taken(name, name, file, known.get(name)))
    return harvest


async def names_below(sandbox: Sandbox, base_path: str) -> list[str]:
    """Files that are there, as a hint for people whose names were wrong."""
    return sorted(await _facts(sandbox, base_path))[:HINTED_FILES]


def _download_problem(
    result: Downloaded, file: Path, known: Facts | None
) -> str | None:
    if result.is_missing:
        return "is not there"
    if result.status == "failed":
        return f"cannot be read: {result.reason}"
    if result.kind != "file":
        return "is a folder, not a file"
    return _size_problem(known, file)


def _size_problem(known: Facts | None, file: Path) -> str | None:
    copied = file.stat().st_size
    if known is None or known.size == copied:
        return None
    return f"had {known.size} bytes, and {copied} were copied"


def _taken(written: str, name: str, file: Path, known: Facts | None) -> Taken:
    copied = file.stat()
    mode = stat.S_IMODE(copied.st_mode) if known is None else known.mode
    return Taken(written, name, file, copied.st_size, mode)


def _files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Each regular file, and each link to one, by its path; links stay inside."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path


def _name_of(note: str) -> str:
    return note.rpartition(": link out: ")[0] or note.partition(": ")[0]


async def _inner_links(
    sandbox: Sandbox, base: str, found: Mapping[str, Path]
) -> dict[str, Path]:
    """Links that are written with an absolute path and lead to a file that was copied."""
    script = ["sh", "-c", _LINKS, "sh", base]
    result = await sandbox.exec(script, user=0, timeout_seconds=_SURVEY_SECONDS)
    parts = result.stdout.split("\0")
    pairs = zip(parts[::2], parts[1::2], strict=False)
    return {
        posixpath.relpath(link, base): found[target]
        for link, real in pairs
        if is_below(link, base)
        and is_below(real, base)
        and (target := posixpath.relpath(real, base)) in found
    }


async def _resolved(
    sandbox: Sandbox, paths: Sequence[str]
) -> list[tuple[str, str, str]]:
    """Where paths lead, their folders, their facts; empty when nobody there can tell."""
    script = ["sh", "-c", _RESOLVE, "sh", *paths]
    result = await sandbox.exec(
        script, user=0, cwd="/", timeout_seconds=_SURVEY_SECONDS
    )
    parts = result.stdout.split("\0")[:-1]
    if not result.ok or len(parts) != 3 * len(paths):
        return []
    return list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))


async def _facts(sandbox: Sandbox, base: str) -> dict[str, Facts]:
    """Facts of each file below ``base``, by its path; names with a line break are missing."""
    result = await sandbox.exec(
        ["sh", "-c", _FACTS, "sh", base],
        user=0,
        cwd="/",
        timeout_seconds=_SURVEY_SECONDS,
    )
    if result.truncated:
        return {}
    found = {}
    for line in result.stdout.splitlines():
        parts = line.split(" ", 2)
        facts = Facts.parse(" ".join(parts[:2]))
        if facts is not None and is_below(parts[-1], base):
            found[posixpath.relpath(parts[-1], base)] = facts
    return found
