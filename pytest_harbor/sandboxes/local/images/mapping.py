"""What stands in for the images that tasks name (ini ``harbor_local_images``). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from pytest_harbor.errors import UnsupportedByProvider

HOST: Final = "host"
"""Target that means this machine's own userland."""
INI_KEY: Final = "harbor_local_images"


class ImageMap:
    """Patterns of image names, the first that matches wins, and what they stand for."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = tuple(pairs)

    def find(self, image: str) -> str | None:
        """The target for an image: :data:`HOST`, or a folder or tar."""
        names = {image, with_tag(image)}
        for pattern, target in self._pairs:
            if any(fnmatchcase(name, pattern) for name in names):
                return target
        return None

    def refuse_if_empty(self, where: str) -> None:
        """Raises UnsupportedByProvider when nobody wants images on the local sandbox."""
        if not self._pairs:
            raise UnsupportedByProvider(
                f"{where}: the local sandbox does not build images unless {INI_KEY} says "
                "what stands for their base, with a line such as "
                f"'debian:* = {HOST}'; or use --harbor-sandbox docker"
            )

    def require(self, image: str, where: str) -> str:
        """As :meth:`find`.

        Raises:
            UnsupportedByProvider: nothing stands for it; with the line to add.
        """
        target = self.find(image)
        if target is None:
            raise UnsupportedByProvider(
                f"{where}: the local sandbox does not pull images, and no line of "
                f"{INI_KEY} stands for this one; add '{_pattern(image)} = {HOST}' for "
                "this machine's own userland, or a folder or tar with a root file "
                "system in its place; or use --harbor-sandbox docker"
            )
        return target


def with_tag(image: str) -> str:
    """An image's name with the tag that is meant where it has none."""
    last = image.rpartition("/")[2]
    return image if ":" in last or "@" in last else f"{image}:latest"


def _pattern(image: str) -> str:
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}:*"
