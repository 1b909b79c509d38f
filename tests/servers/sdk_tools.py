"""An MCP server written with the mcp SDK alone: no card, no data plane."""

from __future__ import annotations

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings


def build(
    *,
    stateless: bool = False,
    json_response: bool = False,
    over_sse: bool = False,
    own_names: list[str] | None = None,
):
    server = MCPServer("plain-tools", log_level="WARNING")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    async def slow(seconds: float) -> str:
        """Take some time."""
        await anyio.sleep(seconds)
        return "done"

    @server.tool()
    def broken(why: str) -> str:
        """Fail."""
        raise ToolError(why)

    @server.tool()
    def long(size: int) -> str:
        """A long text."""
        return "x" * size

    # By default they answer to localhost and 127.0.0.1 alone.
    security = TransportSecuritySettings(allowed_hosts=own_names) if own_names else None
    if over_sse:
        return server.sse_app(transport_security=security)
    return server.streamable_http_app(
        stateless_http=stateless,
        json_response=json_response,
        transport_security=security,
    )
