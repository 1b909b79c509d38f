"""Writers of MCP configuration in the shape that many CLIs share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pytest_harbor.agents.api import McpServer
from pytest_harbor.agents.command.declaration import McpWriter, PlacedFile


def json_writer(path: str, *, key: str = "mcpServers") -> McpWriter:
    """A writer of one JSON file, ``{"mcpServers": {"<name>": {...}}}``.

    A server is ``type`` (``stdio``, ``sse``, ``http``) with ``command`` and ``args``, or with
    ``url`` and ``headers``. ``path`` is in the sandbox, absolute or ``~/...``.
    """

    def write(servers: Sequence[McpServer]) -> Sequence[PlacedFile]:
        table = {server.name: _entry(server) for server in servers}
        return [PlacedFile(path, json.dumps({key: table}, indent=2) + "\n")]

    return write


def _entry(server: McpServer) -> dict[str, Any]:
    if server.transport == "stdio":
        return {"type": "stdio", "command": server.command, "args": list(server.args)}
    kind = "http" if server.transport == "streamable-http" else server.transport
    entry: dict[str, Any] = {"type": kind, "url": server.url}
    if server.headers:
        entry["headers"] = dict(server.headers)
    return entry
