"""Ready declarations of command-line agents that people use, one module per CLI."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pytest_harbor.agents.command.declaration import AgentDeclaration

MODULES: Final[Mapping[str, str]] = {
    "aider": "aider",
    "claude-code": "claude_code",
    "codex": "codex",
    "gemini-cli": "gemini_cli",
    "goose": "goose",
    "mini-swe-agent": "mini_swe_agent",
    "opencode": "opencode",
    "qwen-code": "qwen_code",
}
"""Agent to its module in this package, which has a ``DECLARATION``."""


def load(name: str) -> AgentDeclaration:
    """The declaration of an agent in :data:`MODULES`; its module is imported now."""
    declaration: AgentDeclaration = import_module(
        f"{__name__}.{MODULES[name]}"
    ).DECLARATION
    return declaration
