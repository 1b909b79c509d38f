"""The temporary folders of local providers, and what dead owners left.

Their names are in the command lines of the sandboxes that were made from them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path
from typing import Final

from pytest_harbor.sandboxes.local.broker import launch, processes
from pytest_harbor.sandboxes.owner import Owner

FOLDER_PREFIX: Final = "pytest-harbor-local-"
_OWNER_FILE = "owner"
_MEMORY = Path("/dev/shm")  # noqa: S108  # mkdtemp makes names that cannot be guessed
_ROOM_BYTES = 256 * 1024**2
_NAMELESS_SECONDS = 3600.0
"""A folder gets its owner's name as it is made, and loses it when it is being removed."""


def shelves() -> list[Path]:
    """Where temporary folders may lie, the best first.

    The copy of /etc has some thousand small files; in memory they take a tenth of
    the time to write and to remove.
    """
    found = [Path(tempfile.gettempdir())]
    if os.access(_MEMORY, os.W_OK | os.X_OK):
        facts = os.statvfs(_MEMORY)
        has_room = facts.f_bavail * facts.f_frsize >= _ROOM_BYTES
        found.insert(0 if has_room else 1, _MEMORY)
    return found


def new_folder() -> Path:
    """A folder of this process's on the best shelf."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=shelves()[0])).resolve()
    (folder / _OWNER_FILE).write_text(str(Owner.current()))
    return folder


def sweep_folders() -> int:
    """Remove the temporary folders of dead owners."""
    folders = [shelf.glob(f"{FOLDER_PREFIX}*") for shelf in shelves()]
    left = [one for one in itertools.chain.from_iterable(folders) if _is_left(one)]
    for folder in left:
        remove_folder(folder)
    return len(left)


def _is_left(folder: Path) -> bool:
    try:
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            return False
        name = folder / _OWNER_FILE
        if not name.exists():
            return time.time() - facts.st_mtime > _NAMELESS_SECONDS
        owner = Owner.parse(name.read_text())
    except OSError:  # its owner has just removed it
        return False
    return owner is not None and owner.is_dead


def sweep_processes() -> int:
    """Kill what brokers left that were killed while they started a sandbox."""
    proc = processes.open_proc()
    try:
        found = launch.leftovers(proc, f"/{FOLDER_PREFIX}")
    finally:
        os.close(proc)
    for process in found:
        processes.send(process.pid, signal.SIGKILL)
    return len(found)


def remove_folder(folder: Path) -> None:
    """Remove it, whatever of it is still there."""
    shutil.rmtree(folder, ignore_errors=True)
