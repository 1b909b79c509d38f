"""Input folders: what ``tests/``, ``solution/`` and ``steps/*/`` hold (spec 1.5).

Every file of an input goes into a sandbox, so none may come from outside the task
folder, and a walk of it must end.
"""

# Thousands of folders are read, and a Path object for each name doubles the time.
# ruff: noqa: PTH110, PTH112, PTH114, PTH116

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.folder.ignore import IGNORE_FILE, excluded_paths


@dataclass(frozen=True)
class Input:
    """One input folder, walked. Names are paths below it, with forward slashes."""

    path: Path
    files: frozenset[str]
    folders: frozenset[str]
    excluded: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """True when the file is there and is not left out."""
        return name in self.files and name not in self.excluded


def read_input(
    task_folder: str, name: str, found: Findings, *, honours_ignore_file: bool = True
) -> Input:
    """Walk the input folder ``name``; links out and cycles are problems (X23)."""
    top = f"{task_folder}/{name}"
    files: list[str] = []
    folders: list[str] = []
    links: list[str] = []
    _walk(top, "", files, folders, links)
    if links or os.path.islink(top):
        check_links(task_folder, name, links, found)

    excluded: frozenset[str] = frozenset()
    if honours_ignore_file and IGNORE_FILE in files:
        try:
            excluded = excluded_paths(Path(top, IGNORE_FILE), files, folders)
        except ValueError as error:
            found.problem(f"{name}/{IGNORE_FILE}", f"cannot be read: {error}", "X23")
    return Input(Path(top), frozenset(files), frozenset(folders), excluded)


def _walk(
    folder: str,
    prefix: str,
    files: list[str],
    folders: list[str],
    links: list[str],
) -> None:
    # os.scandir knows a link from the directory entry: no stat for ordinary files.
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.is_symlink():
                links.append(name)
                if os.path.isdir(entry.path):
                    folders.append(name)
                elif os.path.exists(entry.path):
                    files.append(name)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(name)
                _walk(entry.path, f"{name}/", files, folders, links)
            else:
                files.append(name)


def check_links(task_folder: str, name: str, links: list[str], found: Findings) -> None:
    """Refuse links of an input that leave the task folder or form a cycle (X23)."""
    root = os.path.realpath(task_folder)
    top = f"{task_folder}/{name}"
    # The input itself counts as one, when it is a link.
    for link in ["", *links] if os.path.islink(top) else links:
        path = f"{top}/{link}" if link else top
        shown = f"{name}/{link}" if link else name
        if not is_inside(path, root):
            found.problem(
                shown,
                f"leaves the task folder (links to {os.path.realpath(path)});"
                " copy what it points at",
                "X23",
            )
        elif is_endless(path):
            found.problem(shown, "links form a cycle; remove the link", "X23")


def is_inside(path: str, root: str) -> bool:
    """True when ``path`` resolves to ``root`` (itself resolved) or below it."""
    real = os.path.realpath(path)
    return real == root or real.startswith(root + os.sep)


def is_endless(path: str) -> bool:
    """True when following links from ``path`` would never end."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return any(_cycles(os.path.realpath(path)))


def _cycles(start: str) -> Iterator[bool]:
    """Search the graph of real folders depth first; a folder on the way is a cycle."""
    on_the_way: list[str] = []
    done: set[str] = set()
    stack: list[tuple[str, bool]] = [(start, False)]
    while stack:
        folder, leaving = stack.pop()
        if leaving:
            on_the_way.remove(folder)
            done.add(folder)
            continue
        if folder in on_the_way:
            yield True
            return
        if folder in done or not os.path.isdir(folder):
            continue
        on_the_way.append(folder)
        stack.append((folder, True))
        with os.scandir(folder) as entries:
            stack += [
                (os.path.realpath(entry.path), False)
                for entry in entries
                if os.path.isdir(entry.path)  # entry.is_dir() raises on a looping link
            ]
