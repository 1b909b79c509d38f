"""Talk to an agent over A2A (task-steps spec 7.2, 12), in wire version 0.3 or 1.0.

::

    async with await a2a.connect("http://127.0.0.1:8000", timeout_seconds=300) as agent:
        await agent.add_mcp_server("http://127.0.0.1:18765/mcp", name="mail")
        reply = await agent.send("Answer the newest message.", timeout_seconds=600)
        if reply.state is State.COMPLETED:
            print(reply.text)

A connection may be kept open across steps and used by several tasks of one event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from typing_extensions import Self

from pytest_harbor.protocols.agent_card import AgentCard
from pytest_harbor.protocols.reply import Part, Reply


async def connect(
    base_url: str,
    *,
    timeout_seconds: float = 30.0,
    headers: Mapping[str, str] | None = None,
    same_origin: bool = True,
) -> AgentConnection:
    """Read the agent's card, as soon as it answers, and return a connection to it.

    ``/.well-known/agent-card.json`` is tried before ``/.well-known/agent.json``. Until
    ``timeout_seconds`` have passed, a card that is not there is asked for again; 0
    asks once.

    With ``same_origin`` only the path of the interface URL that the card declares is
    used, below the scheme, host and port of ``base_url``: a server in a sandbox knows
    its outside address as little as it may send us elsewhere. Without it the declared
    URL is used as it is (a person's endpoint that a task file names).

    ``headers`` go along with every request.

    Raises:
        ServerTimeout: no card in time; the message has the last answer.
        ProtocolError: the card cannot be read, or offers no JSON-RPC interface.
        MissingExtra: the ``a2a-sdk`` is not installed.
    """
    raise NotImplementedError


class AgentConnection:
    """An agent whose card was read. Made by :func:`connect`."""

    card: AgentCard
    base_url: str

    async def send(
        self,
        parts: str | Sequence[Part],
        *,
        context_id: str | None = None,
        message_id: str | None = None,
        timeout_seconds: float = 600.0,
        poll_seconds: float = 2.0,
        unreachable_seconds: float = 60.0,
        metadata: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Send one message and wait for the end of the agent's turn (spec 7.2).

        The message is sent non-blocking, then the A2A task is polled; the interval grows
        from 50 ms to ``poll_seconds``. ``parts`` is a text or a list of parts as task
        files write them (``{"kind": "text", "text": ...}``; the 1.0 form is read too).
        A missing ``context_id`` or ``message_id`` is made up.

        How the agent fared is in the reply's ``state``, also that it did not end in
        ``timeout_seconds`` (``State.TIMEOUT``; the A2A task is cancelled) or could not be
        reached in at least 3 attempts over ``unreachable_seconds`` (``State.UNREACHABLE``).
        When the caller is cancelled, the A2A task is cancelled too, within 5 seconds.

        Raises:
            ValueError: ``parts`` is empty, or a part has none of the known forms.
        """
        raise NotImplementedError

    async def cancel(self, task_id: str, *, timeout_seconds: float = 5.0) -> bool:
        """Ask the agent to stop an A2A task. False when it refused or did not answer."""
        raise NotImplementedError

    async def add_mcp_server(
        self,
        url: str,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Give the agent the tools of the MCP server at ``url`` (spec 6, step 4).

        ``name`` is the name of the env's card. It is sent only to an agent whose card says
        that ``add`` takes one. ``url`` must be one that the agent can reach.

        Raises:
            UnsupportedByAgent: the card has no MCP-config extension.
            ServerRefused: the call answered >= 400; with status and start of the body.
            ServerUnreachable: the agent does not answer.
        """
        raise NotImplementedError

    async def mcp_servers(self) -> dict[str, dict[str, Any]]:
        """The agent's MCP servers, ``{name: {url, has_headers}}``. Raises as above."""
        raise NotImplementedError

    async def add_skill(self, name: str, description: str, skill_md: str) -> None:
        """Register a skill (spec 6, step 5). Raises as :meth:`add_mcp_server`.

        Raises:
            ValueError: ``name`` is not ``[A-Za-z0-9][A-Za-z0-9._-]{0,127}``.
        """
        raise NotImplementedError

    def configurable(self) -> frozenset[str]:
        """The keys that the agent's card says :meth:`configure` can set; may be empty."""
        raise NotImplementedError

    async def configure(self, values: Mapping[str, Any]) -> frozenset[str]:
        """Set configuration values that stay for later prompts (spec 7.1).

        Values that are None or that the card does not list are left out; without any left
        nothing is sent. Returns the keys that were sent.

        Raises:
            ServerRefused, ServerUnreachable: as :meth:`add_mcp_server`.
        """
        raise NotImplementedError

    async def trajectory(self, task_id: str) -> Any | None:
        """The trajectory of a task (any JSON), or None when the card offers none.

        Raises:
            ServerRefused, ServerUnreachable, ProtocolError: the fetch failed.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close the connection's sockets. May be called again."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
