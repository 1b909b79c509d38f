"""``.harborignore``: what of an input folder stays behind (spec 1.5)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

IGNORE_FILE = ".harborignore"


def excluded_paths(
    ignore_file: Path, files: Iterable[str], folders: Iterable[str]
) -> frozenset[str]:
    """The paths that the ignore file drops, the ignore file itself among them.

    ``files`` and ``folders`` are all paths below the ignore file's folder. What lies
    in a dropped folder is dropped with it, as in git.

    Raises:
        ValueError: the file has a pattern that is none, or is not UTF-8.
    """
    from pathspec import GitIgnoreSpec

    lines = ignore_file.read_text(encoding="utf-8-sig").splitlines()
    try:
        spec = GitIgnoreSpec.from_lines(lines)
    except re.error as error:
        raise ValueError(f"a pattern is none: {error.msg}") from error
    dropped = {folder for folder in folders if spec.match_file(f"{folder}/")}
    dropped |= {
        path
        for path in (*files, *folders)
        if spec.match_file(path) or _is_inside(path, dropped)
    }
    return frozenset(dropped | {IGNORE_FILE})


def _is_inside(path: str, folders: set[str]) -> bool:
    while "/" in path:
        path = path.rsplit("/", 1)[0]
        if path in folders:
            return True
    return False
