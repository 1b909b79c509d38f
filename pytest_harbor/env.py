"""Write an environment for step tasks: tools, state, data plane and card in one object.

::

    from pytest_harbor.env import Environment

    env = Environment("mail", state={"inbox": [], "sent": []})

    @env.tool
    def email_search(query: str) -> list[dict]:
        "Messages whose subject or text holds the query."
        return [m for m in env.state["inbox"] if query.lower() in str(m).lower()]

    @env.tool
    def send(to: str, text: str) -> str:
        "Send a message."
        env.state["sent"].append({"to": to, "text": text})
        return "sent"

    if __name__ == "__main__":
        env.run()

Needs the extra ``agents`` (task-steps spec 11).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

State = TypeVar("State")
F = TypeVar("F", bound=Callable[..., Any])


class Environment(Generic[State]):
    """An environment: an MCP server with a state, a data plane and a card.

    Args:
        name: the ``environment_name``; ``ENVIRONMENT_NAME`` overrides it.
        state: what the state is when empty: a JSON-able dict or a pydantic model.
        instructions: what the server tells agents of itself.
    """

    name: str
    state: State

    def __init__(
        self, name: str, *, state: State, instructions: str | None = None
    ) -> None: ...

    def tool(self, function: F) -> F:
        """Offer a function (plain or async) as a tool; types and docstring describe it."""
        raise NotImplementedError

    def run(self, *, host: str | None = None, port: int | None = None) -> None:
        """Serve until SIGTERM or Ctrl-C, on ``MCP_HOST``:``MCP_PORT`` (0.0.0.0:18765)."""
        raise NotImplementedError

    @asynccontextmanager
    async def serve(
        self, *, host: str = "127.0.0.1", port: int = 0
    ) -> AsyncIterator[str]:
        """Serve while the block runs, for tests; gives the base URL."""
        raise NotImplementedError(host, port)
        yield ""

    def card(self) -> Mapping[str, Any]:
        """The card, as served at ``/.well-known/agent-env.json``."""
        raise NotImplementedError
