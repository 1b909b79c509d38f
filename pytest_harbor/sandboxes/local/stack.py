"""The files of an image as overlays: what lies upon what. Pure but for the folders it makes.

bubblewrap follows links when it mounts something, and what a command of a Dockerfile left
could lead it out of the sandbox. So the topmost source of every overlay is a *guard*: real
folders for each place at which something is mounted, which hide whatever else has the name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GUARD: Final = Path("/guard")
"""Stands for the guard in arguments that are only looked at."""
# bubblewrap's options with a place in the sandbox, and where among their values it is.
_PLACES: Final = {
    "--tmpfs": 0,
    "--dir": 0,
    "--tmp-overlay": 0,
    "--overlay": 2,
    "--ro-bind": 1,
    "--ro-bind-try": 1,
    "--bind": 1,
    "--proc": 0,
    "--dev": 0,
}
_KERNELS_OWN: Final = ("/proc/", "/dev/")
_MAX_OPTIONS_BYTES: Final = 3800
"""Of the 4096 that a mount's options may have."""


@dataclass(frozen=True)
class Stack:
    """An image, from the bottom to the top."""

    skeleton: Path
    """Folders that every sandbox has."""
    base: Path | None = None
    """Folder of a root file system; ``None`` is the host's userland."""
    layers: tuple[Path, ...] = ()
    """Kept uppers, the oldest first, each with a folder per overlay."""
    guard: Path = GUARD
    upper: Path | None = None
    """Where what is written is kept, with a folder per overlay; ``None``: in memory."""
    work: Path | None = None
    """The kernel's own folders, on the file system of ``upper``."""

    def overlay(self, place: str, lowest: Sequence[Path]) -> Iterator[str]:
        """Bubblewrap's arguments for one overlay; the last source lies on top."""
        part = part_name(place)
        layers = [layer / part for layer in self.layers]
        sources = [*lowest, *(one for one in layers if one.is_dir())]
        sources.append(Path(f"{self.guard}{place}"))
        for source in sources:
            yield from ("--overlay-src", str(source))
        if self.upper is None or self.work is None:
            yield from ("--tmp-overlay", place)
        else:
            yield from (
                "--overlay",
                str(self.upper / part),
                str(self.work / part),
                place,
            )

    @property
    def is_too_high(self) -> bool:
        """True when the kernel has no room for the names of all layers."""
        length = sum(len(str(layer)) + len("/oldroot:") + 8 for layer in self.layers)
        return length > _MAX_OPTIONS_BYTES


def part_name(place: str) -> str:
    """What a layer calls the part of it that lies at ``place``."""
    return place.strip("/").replace("%", "%25").replace("/", "%2F") or "%"


def overlays(arguments: Sequence[str]) -> tuple[str, ...]:
    """Where bubblewrap's arguments lay overlays."""
    options = ("--tmp-overlay", "--overlay")
    return tuple(place for option, _, place in _mounts(arguments) if option in options)


def places(arguments: Sequence[str]) -> Mapping[str, bool]:
    """Everywhere that bubblewrap's arguments mount something; True where it is a file."""
    found: dict[str, bool] = {}
    for option, source, place in _mounts(arguments):
        if not place.startswith(_KERNELS_OWN):
            is_bind = option in ("--ro-bind", "--ro-bind-try", "--bind")
            found[place] = is_bind and Path(source).is_file()
    return found


def _mounts(arguments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Option, first value and place of each mount."""
    # Values never look like options: they are paths.
    for at, option in enumerate(arguments):
        if option == "--":
            return
        if (offset := _PLACES.get(option)) is not None:
            yield option, arguments[at + 1], arguments[at + 1 + offset]


def make_guard(
    folder: Path,
    where: Mapping[str, bool],
    *,
    modes: Mapping[str, int],
    links: Mapping[str, str],
    texts: Mapping[str, str],
) -> None:
    """Fill ``folder`` with real folders and files for the places ``where``.

    ``modes`` are those of folders that are not 0755; ``links`` and ``texts`` are files
    that belong to it, by their place.
    """
    for place in sorted(where):
        inner = Path(place)
        above = [*reversed(inner.parents), *([] if where[place] else [inner])]
        for path in above:
            target = Path(f"{folder}{path}")
            if not target.is_dir():
                target.mkdir()
                target.chmod(modes.get(str(path), 0o755))
        if where[place]:
            Path(f"{folder}{inner}").touch()
    for place, link in links.items():
        Path(f"{folder}{place}").symlink_to(link)
    for place, text in texts.items():
        target = Path(f"{folder}{place}")
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
