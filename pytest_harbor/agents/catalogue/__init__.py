"""Ready declarations of command-line agents that people use, one module per CLI."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pytest_harbor.agents.command.declaration import AgentDeclaration

MODULES: Final[Mapping[str, str]] = {
    "claude-code": "claude_code",
    "opencode": "opencode",
}
"""Agent to its module in this package, which has a ``DECLARATION``."""


def load(name: str) -> AgentDeclaration:
    """The declaration of an agent in :data:`MODULES`; its module is imported now."""
    declaration: AgentDeclaration = import_module(
        f"{__name__}.{MODULES[name]}"
    ).DECLARATION
    return declaration
