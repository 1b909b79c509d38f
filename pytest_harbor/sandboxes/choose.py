"""Which provider a task gets (design 5.2): pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pytest_harbor.errors import SettingsError

AUTO = "auto"
LOCAL = "local"
DOCKER = "docker"


def provider_name(setting: str, needs_container: bool) -> str:
    """The provider for one environment.

    ``auto`` means Docker for a task that names an image, a Dockerfile or a Compose
    file, else the local sandbox; anything else is meant as it is written.
    """
    if setting != AUTO:
        return setting
    return DOCKER if needs_container else LOCAL


def check_known(setting: str, known: Iterable[str]) -> None:
    """Refuse a provider that nobody registered.

    Raises:
        SettingsError: lists the known ones and the nearest.
    """
    names = sorted({AUTO, LOCAL, DOCKER, *known})
    if setting in names:
        return
    near = difflib.get_close_matches(setting, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise SettingsError(
        f"unknown sandbox {setting!r}.{hint} Known ones: {', '.join(names)}."
    )
