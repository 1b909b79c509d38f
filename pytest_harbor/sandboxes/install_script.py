"""Software that a sandbox has beside its image's."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

INSTALL_FOLDER = "/opt/harbor-agents"
"""Folder in the sandbox below which installed software lies."""

INSTALLED_VERSION = "AGENT_VERSION.txt"
"""File in its prefix with what the probe of an installation printed."""


@dataclass(frozen=True)
class InstallScript:
    """Software that a sandbox has beside its image's; made once, then cached.

    ``script`` is run by Bash as root with public network, whatever network the sandbox
    itself gets, and never sees the sandbox's ``env`` or files. What it leaves in
    :attr:`prefix` is there in each sandbox that asks for the same script; what it does to the
    rest of the file system stays in a container, and is lost in a local sandbox.
    """

    name: str
    """Letters, digits, ``.``, ``_``, ``-``; names the folder."""
    script: str
    probe: tuple[str, ...] = ()
    """Command that prints the version of what was installed; empty: none. It fails the
    installation with it."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the script, beside ``AGENT_PREFIX``. Nothing but a hash of them is kept."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Values in ``env`` that no text about the installation may hold: a failure's is kept."""
    timeout_seconds: float = 900.0

    @property
    def prefix(self) -> str:
        """The folder that is kept."""
        return f"{INSTALL_FOLDER}/{self.name}"

    @property
    def variables(self) -> Mapping[str, str]:
        """All variables of the script."""
        return {**self.env, "AGENT_PREFIX": self.prefix}

    def digest(self, place: str) -> str:
        """What tells this installation in ``place`` (an image, a machine) from others."""
        parts = [place, self.name, self.script, *self.probe]
        parts += itertools.chain(*sorted(self.env.items()))
        text = "\0".join(parts)
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]
