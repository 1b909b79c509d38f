"""Placeholders of a declaration, and the command that they make. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pytest_harbor.agents.command.declaration import AgentDeclaration

NAMES: Final = (
    "instruction",
    "model",
    "provider",
    "model_name",
    "session",
    "mcp_config",
    "logs",
    "prefix",
    "workdir",
    "home",
)
OF_THE_MODEL: Final = frozenset({"model", "provider", "model_name"})
MODEL_FLAG: Final = "{model_flag}"
MCP_FLAG: Final = "{mcp_flag}"
_PLACEHOLDER: Final = re.compile(r"\{(" + "|".join(NAMES) + r")\}")

Values = Mapping[str, str | None]
"""Placeholder to value; ``None`` or absent: there is none in this turn."""


def placeholders(parts: Iterable[str]) -> frozenset[str]:
    """The placeholders in these parts."""
    return frozenset(name for part in parts for name in _PLACEHOLDER.findall(part))


def fill(part: str, values: Values) -> str | None:
    """``part`` with its placeholders replaced; ``None`` when one has no value."""
    if any(values.get(name) is None for name in _PLACEHOLDER.findall(part)):
        return None
    return _PLACEHOLDER.sub(lambda match: values[match[1]] or "", part)


def model_values(model: str | None) -> dict[str, str | None]:
    """``{model}`` and its parts: ``anthropic/claude`` is of the provider ``anthropic``."""
    if model is None:
        return {}
    provider, slash, name = model.partition("/")
    return {
        "model": model,
        "provider": provider if slash else None,
        "model_name": name if slash else model,
    }


def argv(
    declaration: AgentDeclaration,
    template: Sequence[str],
    values: Values,
    *,
    has_servers: bool,
) -> list[str]:
    """The command of a turn, flags put where they belong.

    Raises:
        ValueError: a placeholder has no value; names it.
    """
    flags = {
        MODEL_FLAG: declaration.model_flag if values.get("model") is not None else (),
        MCP_FLAG: declaration.mcp_flag if has_servers else (),
    }
    parts: list[str] = []
    for part in template:
        parts.extend(flags.get(part, (part,)))
    for flag, expanded in flags.items():
        if flag not in template:
            parts.extend(expanded)
    return [_filled(part, values) for part in parts]


def _filled(part: str, values: Values) -> str:
    filled = fill(part, values)
    if filled is None:
        [missing, *_] = [
            name for name in _PLACEHOLDER.findall(part) if values.get(name) is None
        ]
        raise ValueError(f"{{{missing}}} has no value here, but {part!r} needs it")
    return filled
