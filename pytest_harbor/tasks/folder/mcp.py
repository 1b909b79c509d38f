"""MCP servers for the agent: a task's and a run's (spec 3.8). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_harbor.tasks.folder.model import McpServerConfig
from pytest_harbor.tasks.folder.plan_types import McpServerPlan


def mcp_server_plans(
    servers: Iterable[McpServerConfig], table: str
) -> tuple[McpServerPlan, ...]:
    """What was declared in ``table``; of two with one name the later one counts."""
    return merged(
        McpServerPlan(
            name=server.name,
            transport=server.transport,
            url=server.url or None,
            command=server.command or None,
            args=server.args,
            headers=server.headers,
            table=table,
        )
        for server in servers
    )


def merged(servers: Iterable[McpServerPlan]) -> tuple[McpServerPlan, ...]:
    """Each name once: the later one replaces the earlier, in its place."""
    by_name: dict[str, McpServerPlan] = {}
    for server in servers:
        by_name[server.name] = server
    return tuple(by_name.values())
