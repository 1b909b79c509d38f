"""What is copied into a sandbox and out of it, and what came of that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Upload:
    """One file, folder or text on its way into a sandbox, owned by root.

    A folder's content is merged into ``target``: files of the same name are
    replaced, others stay. Parents are made as needed.
    """

    source: Path | bytes
    target: str
    modes: Literal["readable", "keep"] = "readable"
    """``readable``: everybody may read, what was executable stays so, whatever the
    umask of the host's checkout was. ``keep``: the host's own mode bits (no setuid)."""
    executable: frozenset[str] = frozenset()
    """Paths below ``source`` that are made executable (``test.sh``)."""
    exclude: frozenset[str] = frozenset()
    """Paths below ``source`` that are left out (from ``.harborignore``)."""


@dataclass(frozen=True)
class Download:
    """One path of the sandbox that is wanted at ``target`` on the host."""

    source: str
    target: Path
    exclude: tuple[str, ...] = ()
    """``tar --exclude`` patterns, for folders."""


NOT_THERE = "No such file or directory"
"""Reason of a download whose source does not exist."""


@dataclass(frozen=True)
class Downloaded:
    """What came of a :class:`Download`.

    ``dropped`` lists members that were left out because they could reach outside
    (links out, devices, FIFOs, names with ``..``): ``path below source: reason``.
    """

    source: str
    status: Literal["ok", "failed", "empty"]
    kind: Literal["file", "directory"] | None = None
    reason: str = ""
    dropped: tuple[str, ...] = ()

    @property
    def is_missing(self) -> bool:
        """True when the source does not exist."""
        # The second: what should be a folder above it is a file.
        reasons = (NOT_THERE, "Not a directory")
        return self.status == "failed" and self.reason in reasons


@dataclass(frozen=True)
class TransferLimits:
    """Caps on what one download may bring to the host."""

    max_bytes: int = 2 * 1024**3
    max_files: int = 100_000
