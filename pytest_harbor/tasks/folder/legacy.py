"""Legacy spellings, read into today's keys before the models see them (spec 20)."""

from __future__ import annotations

import re
from typing import Any

from pytest_harbor.tasks.findings import Findings

SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG])I?B?\s*", re.IGNORECASE)
KIB_PER_UNIT = {"K": 1, "M": 1024, "G": 1024 * 1024}


def modernise_task(raw: dict[str, Any], found: Findings) -> None:
    """Replace the legacy keys of a parsed ``task.toml`` in place.

    Each use leaves one note. Values that cannot be read are problems; values of
    a wrong type stay where they are, for the model to refuse.
    """
    file = "task.toml"
    if "version" in raw:
        version = raw.pop("version")
        raw.setdefault("schema_version", version)
        found.note(f"{file}: version is deprecated, use schema_version")
    if "multi_step_reward_mode" in raw:
        del raw["multi_step_reward_mode"]
        found.note(
            f"{file}: multi_step_reward_mode is deprecated and ignored,"
            " use multi_step_reward_strategy"
        )

    modernise_environment(raw.get("environment"), file, "environment", found)
    _modernise_network(raw.get("agent"), file, "agent", found)
    _modernise_verifier(raw.get("verifier"), file, "verifier", found)
    steps = raw.get("steps")
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict):
            _modernise_network(step.get("agent"), file, "steps.agent", found)
            _modernise_verifier(step.get("verifier"), file, "steps.verifier", found)


def modernise_environment(table: object, file: str, name: str, found: Findings) -> None:
    """Replace the legacy keys of an ``[environment]`` table in place."""
    if not isinstance(table, dict):
        return
    for key in ("memory", "storage"):
        if key in table:
            _modernise_size(table, key, file, name, found)
    _modernise_network(table, file, name, found)
    servers = table.get("mcp_servers")
    for server in servers if isinstance(servers, list) else []:
        if isinstance(server, dict) and server.get("transport") == "http":
            server["transport"] = "streamable-http"
            found.note(
                f'{file}: [[{name}.mcp_servers]] transport = "http" is deprecated,'
                ' use "streamable-http"'
            )


def _modernise_verifier(table: object, file: str, name: str, found: Findings) -> None:
    _modernise_network(table, file, name, found)
    if isinstance(table, dict):
        environment = table.get("environment")
        modernise_environment(environment, file, f"{name}.environment", found)


def _modernise_network(table: object, file: str, name: str, found: Findings) -> None:
    if not isinstance(table, dict) or "allow_internet" not in table:
        return
    allowed = table.pop("allow_internet")
    if not isinstance(allowed, bool):
        found.problem(
            f"{file}: [{name}].allow_internet", "must be true or false", "X01"
        )
        return
    found.note(f"{file}: [{name}].allow_internet is deprecated, use network_mode")
    if "network_mode" not in table and "allowed_hosts" not in table:
        table["network_mode"] = "public" if allowed else "no-network"


def _modernise_size(
    table: dict[str, Any], key: str, file: str, name: str, found: Findings
) -> None:
    text, today = table.pop(key), f"{key}_mb"
    size = mib(text) if isinstance(text, str) else None
    if size is None:
        found.problem(
            f"{file}: [{name}].{key}",
            f'must be a size such as "2G", "512M" or "1024K", not {text!r};'
            f" or use {today}",
            "X01",
        )
        return
    found.note(f"{file}: [{name}].{key} is deprecated, use {today} = {size}")
    if table.setdefault(today, size) != size:
        found.problem(
            f"{file}: [{name}]",
            f'{key} = "{text}" disagrees with {today} = {table[today]}; remove {key}',
            "X25",
        )


def mib(text: str) -> int | None:
    """The MiB of a legacy size (``2G``, ``512m``, ``1024K``), or ``None``."""
    match = SIZE.fullmatch(text)
    if match is None:
        return None
    number, unit = match.groups()
    return int(float(number) * KIB_PER_UNIT[unit.upper()] / 1024)
