"""The folder of a run: its place, the ``latest`` link, how many are kept.

``<results>/<run id>/`` holds the record files and one folder per episode. Several
sessions, and all workers of each, may use the same results folder at once.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
from functools import cached_property
from pathlib import Path
from typing import Final

from pytest_harbor.sandboxes.owner import Owner

KEPT_RUNS: Final = 10
RUN_NAME: Final = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
MAX_NAME: Final = 150
LATEST: Final = "latest"
RUN_FILE: Final = "run.json"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


class RunFolder:
    """One run's folder below ``results``, made on first use of :attr:`path`."""

    def __init__(self, results: Path, run_id: str, *, owner: str = "") -> None:
        self.results = results
        self.run_id = run_id
        self.owner = owner

    @property
    def place(self) -> Path:
        """Where the folder is, or would be."""
        return self.results / self.run_id

    @property
    def exists(self) -> bool:
        """True when some process of this run had something to write."""
        return self.place.is_dir()

    @cached_property
    def path(self) -> Path:
        """The folder. The process that makes it also moves ``latest`` and prunes.

        Raises:
            OSError: the results folder cannot be written.
        """
        self.results.mkdir(parents=True, exist_ok=True)
        try:
            self.place.mkdir()
        except FileExistsError:
            return self.place
        run = {"run_id": self.run_id, "owner": self.owner}
        (self.place / RUN_FILE).write_text(json.dumps(run) + "\n", encoding="utf-8")
        _hide_from_git(self.results)
        point_latest(self.results, self.run_id)
        prune(self.results, keep=KEPT_RUNS)
        return self.place

    def new_episode(self, name: str) -> Path:
        """Make the folder of one episode; a rerun gets one of its own."""
        safe = _UNSAFE.sub("_", name).strip("._")[:MAX_NAME] or "episode"
        for number in itertools.count(1):
            folder = self.path / (safe if number == 1 else f"{safe}.{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                break
        return folder


def _hide_from_git(results: Path) -> None:
    """As pytest does for its cache: results are nothing to commit by accident.

    Only in a folder that holds nothing but runs, so a project's own folder is left alone.
    """
    ignore = results / ".gitignore"
    strangers = [
        entry
        for entry in results.iterdir()
        if entry.name != LATEST and not RUN_NAME.fullmatch(entry.name)
    ]
    if not strangers:
        ignore.write_text("# Made by pytest-harbor.\n*\n", encoding="utf-8")


def point_latest(results: Path, run_id: str) -> None:
    """Let the link ``latest`` name a run, in one step that no reader sees half done.

    Something of that name which is no link is the user's, and stays.
    """
    link = results / LATEST
    if link.exists() and not link.is_symlink():
        return
    new = results / f".{LATEST}-{secrets.token_hex(4)}"
    try:
        new.symlink_to(run_id, target_is_directory=True)
        new.replace(link)
    except OSError:  # a file system without links
        new.unlink(missing_ok=True)


def prune(results: Path, *, keep: int) -> None:
    """Remove all but the newest ``keep`` runs; runs that still go on are spared."""
    runs = sorted(
        entry
        for entry in results.iterdir()
        if RUN_NAME.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink()
    )
    for run in runs[:-keep] if keep else runs:
        if _is_running(run):
            continue
        doomed = results / f".old-{run.name}"
        with contextlib.suppress(OSError):  # another session removes the same run
            run.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def _is_running(run: Path) -> bool:
    try:
        text = json.loads((run / RUN_FILE).read_text(encoding="utf-8"))["owner"]
        owner = Owner.parse(text)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return owner is not None and not owner.is_dead


def relative_to(path: Path, root: Path) -> str:
    """``path`` as seen from ``root``, with ``..`` where it lies elsewhere."""
    return os.path.relpath(path, root)
