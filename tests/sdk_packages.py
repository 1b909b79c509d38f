"""Where the packages are that a server written with an SDK needs, to bring it into a sandbox."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def folders_of(name: str) -> dict[str, Path]:
    """Top-level folders and modules of a package and all it requires, by their names."""
    found: dict[str, Path] = {}
    seen: set[Requirement] = set()
    waiting = [Requirement(name)]
    while waiting:
        wanted = waiting.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        distribution = metadata.distribution(wanted.name)
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__"):
                found[top] = Path(str(distribution.locate_file(top)))
        for text in distribution.requires or ():
            needed = Requirement(text)
            asked = ({"extra": extra} for extra in ("", *wanted.extras))
            if not needed.marker or any(map(needed.marker.evaluate, asked)):
                waiting.append(needed)
    return found
