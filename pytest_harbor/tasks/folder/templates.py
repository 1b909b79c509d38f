"""``${VAR}`` templates of environment tables (spec 3.11)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TEMPLATE = re.compile(
    r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?\}", re.DOTALL
)

INSIDE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}]*)?\}")


@dataclass(frozen=True)
class Resolved:
    """An environment table with its templates replaced.

    ``secrets`` are the values that came from the host, for masking. ``missing`` are
    the variables that are not set, each with the table that needs it.
    """

    values: dict[str, str]
    secrets: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()


def resolve_inside(
    headers: Mapping[str, str], table: str, environ: Mapping[str, str]
) -> Resolved:
    """As :func:`resolve`, but templates anywhere in a value are replaced.

    For HTTP headers of MCP servers (``Bearer ${TOKEN}``, spec 3.11).
    """
    values: dict[str, str] = {}
    secrets: list[str] = []
    missing: list[tuple[str, str]] = []

    def replace(match: re.Match[str]) -> str:
        one = resolve({"value": match[0]}, table, environ)
        secrets.extend(one.secrets)
        missing.extend(one.missing)
        return one.values.get("value", "")

    for name, text in headers.items():
        values[name] = INSIDE.sub(replace, text)
    return Resolved(values, tuple(secrets), tuple(dict.fromkeys(missing)))


def resolve(env: Mapping[str, str], table: str, environ: Mapping[str, str]) -> Resolved:
    """Replace the values that are a template as a whole; other text is literal.

    ``environ`` is the host's environment. A default (``${VAR:-text}``) serves only
    when the variable is not set; an empty variable counts as set.
    """
    values: dict[str, str] = {}
    secrets: list[str] = []
    missing: list[tuple[str, str]] = []
    for key, text in env.items():
        match = TEMPLATE.fullmatch(text)
        if match is None:
            values[key] = text
        elif (value := environ.get(match["name"])) is not None:
            values[key] = value
            secrets.append(value)
        elif match["default"] is not None:
            values[key] = match["default"]
        else:
            missing.append((match["name"], table))
    return Resolved(values, tuple(secrets), tuple(dict.fromkeys(missing)))
