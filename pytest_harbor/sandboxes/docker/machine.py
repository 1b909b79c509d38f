"""What the processes of one user on this machine share: a folder of lock files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pytest_harbor.errors import SandboxStartFailed


def shared_folder(name: str) -> Path:
    """The folder for locks of one kind. Raises SandboxStartFailed."""
    folder = Path(tempfile.gettempdir(), f"pytest-harbor-{os.getuid()}", name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.parent.chmod(0o700)  # fails when somebody else made it
    except OSError as error:
        raise SandboxStartFailed(f"cannot use {folder} for locks: {error}") from error
    return folder
