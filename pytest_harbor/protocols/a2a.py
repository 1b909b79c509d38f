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

import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import anyio
from typing_extensions import Self

from pytest_harbor.errors import (
    ProtocolError,
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
    UnsupportedByAgent,
)
from pytest_harbor.protocols.addresses import below, join, shown
from pytest_harbor.protocols.agent_card import (
    AGENT_CONFIG,
    CARD_PATHS,
    FALLBACK_PATH,
    MCP_CONFIG,
    SKILL_CONFIG,
    SKILL_NAME,
    TRAJECTORY,
    AgentCard,
    parse_card,
)
from pytest_harbor.protocols.extras import needs
from pytest_harbor.protocols.reply import Part, Reply
from pytest_harbor.protocols.turn import CANCEL_SECONDS, Turn

if TYPE_CHECKING:
    import httpx

    from pytest_harbor.protocols.a2a_wire import WireClient

CALL_SECONDS: Final = 30.0
"""Longest wait for one answer that is no turn: a card, a poll, an extension call."""
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0


async def connect(
    base_url: str,
    *,
    timeout_seconds: float = CALL_SECONDS,
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
        ServerUnreachable, ServerRefused: the same, when asked once.
        ProtocolError: the card cannot be read, or offers no JSON-RPC interface.
        MissingExtra: the ``a2a-sdk`` is not installed.
    """
    with needs("agents", "talking to an A2A agent"):
        from pytest_harbor.protocols import a2a_wire, http
    client = http.new_client(base_url, headers=headers)
    try:
        card_url, document = await _card(client, base_url, timeout_seconds)
        card = parse_card(document, base_url, card_url, same_origin=same_origin)
        wire = a2a_wire.WireClient(
            card.url, card.wire, fallback=join(base_url, FALLBACK_PATH), headers=headers
        )
    except BaseException:
        with anyio.CancelScope(shield=True):
            await client.aclose()
        raise
    return AgentConnection(card, base_url, client, wire)


async def _card(
    client: httpx.AsyncClient, base_url: str, timeout_seconds: float
) -> tuple[str, object]:
    started = anyio.current_time()
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await _card_once(client, base_url, timeout_seconds or CALL_SECONDS)
        except (ServerRefused, ServerUnreachable) as error:
            left = started + timeout_seconds - anyio.current_time()
            if timeout_seconds <= 0:
                raise
            if left <= 0:
                raise ServerTimeout(
                    f"no agent card in {timeout_seconds:g} s; last: {error}",
                    url=base_url,
                ) from error
        await anyio.sleep(min(pause, max(left, 0.0)))
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)


async def _card_once(
    client: httpx.AsyncClient, base_url: str, timeout_seconds: float
) -> tuple[str, object]:
    from pytest_harbor.protocols import http

    missing: ServerRefused | None = None
    for path in CARD_PATHS:
        url = join(base_url, path)
        response = await http.request(
            client, "GET", url, timeout_seconds=min(timeout_seconds, CALL_SECONDS)
        )
        try:
            return url, http.json_of(http.checked(response))
        except ServerRefused as error:
            missing = missing or error
    assert missing is not None
    raise missing


class AgentConnection:
    """An agent whose card was read. Made by :func:`connect`."""

    def __init__(
        self,
        card: AgentCard,
        base_url: str,
        client: httpx.AsyncClient,
        wire: WireClient,
    ) -> None:
        self.card = card
        self.base_url = base_url
        self._client = client
        self._wire = wire

    async def send(
        self,
        parts: str | Sequence[Part],
        *,
        context_id: str | None = None,
        message_id: str | None = None,
        task_id: str | None = None,
        timeout_seconds: float = 600.0,
        poll_seconds: float = 2.0,
        unreachable_seconds: float = 60.0,
        metadata: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Send one message and wait for the end of the agent's turn (spec 7.2).

        The message is sent non-blocking, then the A2A task is polled; the interval grows
        from 20 ms to ``poll_seconds``. ``parts`` is a text or a list of parts as task
        files write them (``{"kind": "text", "text": ...}``; the 1.0 form is read too).
        A missing ``context_id`` or ``message_id`` is made up. With ``task_id`` the message
        answers a task that is ``input-required``.

        How the agent fared is in the reply's ``state``, also that it did not end in
        ``timeout_seconds`` (``State.TIMEOUT``; the A2A task is cancelled) or could not be
        reached in at least 3 attempts over ``unreachable_seconds`` (``State.UNREACHABLE``).
        When the caller is cancelled, the A2A task is cancelled too, within 5 seconds.

        Raises:
            ValueError: ``parts`` is empty, or a part has none of the known forms.
        """
        from pytest_harbor.protocols import a2a_wire

        turn = Turn(
            self._wire,
            a2a_wire.core_parts(parts),
            message_id=message_id or uuid.uuid4().hex,
            context_id=context_id or uuid.uuid4().hex,
            answers=task_id,
            timeout_seconds=timeout_seconds,
            poll_seconds=poll_seconds,
            unreachable_seconds=unreachable_seconds,
            metadata=metadata,
        )
        return await turn.run()

    async def cancel(
        self, task_id: str, *, timeout_seconds: float = CANCEL_SECONDS
    ) -> bool:
        """Ask the agent to stop an A2A task. False when it refused or did not answer."""
        try:
            await self._wire.cancel(task_id, timeout_seconds=timeout_seconds)
        except ProtocolError:
            return False
        return True

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
        body: dict[str, Any] = {"url": url}
        extension = self.card.extensions.get(MCP_CONFIG)
        if name and extension and "name" in extension.takes("add"):
            body["name"] = name
        if headers:
            body["headers"] = dict(headers)
        await self._extend(MCP_CONFIG, "POST", body)

    async def mcp_servers(self) -> dict[str, dict[str, Any]]:
        """The agent's MCP servers, ``{name: {url, has_headers}}``. Raises as above."""
        response = await self._extend(MCP_CONFIG, "GET")
        return dict(_field(response, "mcp_servers", dict))

    async def add_skill(self, name: str, description: str, skill_md: str) -> None:
        """Register a skill (spec 6, step 5). Raises as :meth:`add_mcp_server`.

        Raises:
            ValueError: ``name`` is not ``[A-Za-z0-9][A-Za-z0-9._-]{0,127}``.
        """
        if not SKILL_NAME.fullmatch(name):
            raise ValueError(
                f"skill name {name!r}: letters, digits and ._- only, 1 to 128 of them, "
                "the first a letter or digit"
            )
        body = {"name": name, "description": description, "skill_md": skill_md}
        await self._extend(SKILL_CONFIG, "POST", body)

    def configurable(self) -> frozenset[str]:
        """The keys that the agent's card says :meth:`configure` can set; may be empty."""
        if not self.card.has(AGENT_CONFIG):
            return frozenset()
        return self.card.extensions[AGENT_CONFIG].takes("set")

    async def configure(self, values: Mapping[str, Any]) -> frozenset[str]:
        """Set configuration values that stay for later prompts (spec 7.1).

        Values that are None or that the card does not list are left out; without any left
        nothing is sent. Returns the keys that were sent.

        Raises:
            ServerRefused, ServerUnreachable: as :meth:`add_mcp_server`.
        """
        taken = self.configurable()
        body = {
            key: value
            for key, value in values.items()
            if value is not None and key in taken
        }
        if body:
            await self._extend(AGENT_CONFIG, "POST", body)
        return frozenset(body)

    async def trajectory(self, task_id: str) -> Any | None:
        """The trajectory of a task (any JSON), or None when the card offers none.

        Raises:
            ServerRefused, ServerUnreachable, ProtocolError: the fetch failed.
        """
        if not self.card.has(TRAJECTORY):
            return None
        response = await self._extend(TRAJECTORY, "POST", {"task_id": task_id})
        return _field(response, "trajectory", object)

    async def aclose(self) -> None:
        """Close the connection's sockets. May be called again."""
        with anyio.CancelScope(shield=True):
            await self._client.aclose()
            await self._wire.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _extend(
        self, uri: str, method: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        from pytest_harbor.protocols import http

        extension = self.card.extensions.get(uri)
        if extension is None or extension.endpoint is None:
            offered = ", ".join(sorted(self.card.extensions)) or "none"
            raise UnsupportedByAgent(
                f"agent {self.card.name!r} has no extension {uri} "
                f"(its card lists: {offered})"
            )
        response = await http.request(
            self._client,
            method,
            below(self.base_url, extension.endpoint),
            json_body=body,
            timeout_seconds=CALL_SECONDS,
        )
        return http.checked(response)


def _field(response: httpx.Response, key: str, kind: type) -> Any:
    from pytest_harbor.protocols import http

    answer = http.json_of(response)
    fields = answer if isinstance(answer, dict) else {}
    if key not in fields or not isinstance(fields[key], kind):
        url = str(response.request.url)
        raise ProtocolError(f"{shown(url)} answered no `{key}`", url=url)
    return fields[key]
