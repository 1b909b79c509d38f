"""From an env's ID to the server to start (spec 4, 11)."""

from __future__ import annotations

import posixpath
from typing import Final

from pytest_harbor.errors import (
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
    StepError,
)
from pytest_harbor.graphs.agents import (
    command_of,
    limits_of,
    provider_of,
    python_of,
    spec_of,
)
from pytest_harbor.graphs.servers import Listening, ServerPlan
from pytest_harbor.graphs.steps.api import RunSettings
from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.entries import LOCAL_VERSION, EnvEntry
from pytest_harbor.tasks.steps.model import DeployEnv

ENV_LISTENING: Final = Listening("MCP_PORT", "MCP_HOST", 18765)
MCP_PATH: Final = "/mcp"
"""Where a server without a card speaks MCP."""
_DATABASE: Final = "sqlite:////tmp/environment.db"


def find_env(env_id: str, version: int | None, bundle: Bundle) -> EnvEntry:
    """The env of that ID or alias.

    Raises:
        StepError: there is none (names the nearest), or not of that version.
        TaskLoadError: its folder cannot be used.
    """
    entry = bundle.env(env_id)
    if entry is None:
        near = bundle.near("env", env_id)
        hint = f" (did you mean '{near}'?)" if near else ""
        raise StepError(f"no env '{env_id}' in the bundle{hint}")
    if entry.url is not None:
        raise StepError(
            f"env '{env_id}' already runs at {entry.url}; name it in env_ids instead of "
            "deploying it"
        )
    if version not in (None, LOCAL_VERSION):
        raise StepError(
            f"env '{env_id}' has version {LOCAL_VERSION} only, not {version}"
        )
    return entry


def plan_env(step: DeployEnv, entry: EnvEntry, settings: RunSettings) -> ServerPlan:
    """The server of a ``deploy_env`` step. Raises StepError: nothing starts it there."""
    where = provider_of(entry, step.sandbox_type or settings.env_sandbox)
    env = {"DATABASE_URL": _DATABASE}
    if entry.environment_name is not None:
        env["ENVIRONMENT_NAME"] = entry.environment_name
    return ServerPlan(
        what=f"env '{step.env_id}'",
        slug=f"env-{step.env_id}",
        provider=where,
        spec=spec_of(entry, where, limits_of(step)),
        listening=ENV_LISTENING,
        probe=answers_card_or_mcp,
        command=command_of(entry, where),
        python=python_of(entry, where),
        env=env,
        ready_seconds=settings.env_ready_seconds,
        ttl_seconds=step.ttl_seconds,
        hint=f"add a CMD to {entry.dockerfile or entry.image}",
    )


async def answers_card_or_mcp(url: str) -> str | None:
    """Probe of an env: ready when its card, or an MCP ``initialize``, answers (spec 4).

    Raises ProtocolError for a card that is there and cannot be read.
    """
    from pytest_harbor.protocols import data_plane, mcp

    try:
        if await data_plane.read_card(url) is not None:
            return None
    except (ServerUnreachable, ServerRefused, ServerTimeout) as error:
        return str(error)
    mcp_url = posixpath.join(url, MCP_PATH.lstrip("/"))
    if await mcp.answers(mcp_url):
        return None
    return f"it has no card, and no MCP server answers at {mcp_url}"
