"""Write an environment for step tasks: tools, state, data plane and card in one object.

::

    from pytest_harbor.env import Environment, ToolError

    env = Environment("mail", state={"inbox": [], "sent": []})

    @env.tool
    def email_search(query: str) -> list[dict]:
        "Messages whose subject or text holds the query."
        return [m for m in env.state["inbox"] if query.lower() in str(m).lower()]

    @env.tool
    def send(to: str, text: str) -> str:
        "Send a message."
        if "@" not in to:
            raise ToolError(f"{to} is no address")
        env.state["sent"].append({"to": to, "text": text})
        return "sent"

    if __name__ == "__main__":
        env.run()

Needs the extra ``agents`` (task-steps spec 11).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import os
import re
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, overload

import anyio

from pytest_harbor.protocols import env_server
from pytest_harbor.protocols.data_plane import MCP_PATH
from pytest_harbor.protocols.env_server import Served, ServedExtension
from pytest_harbor.protocols.env_state import (
    BadPart,
    Refusal,
    merged,
    read_bytes,
    read_json,
)
from pytest_harbor.protocols.extras import needs
from pytest_harbor.protocols.reply import Part

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

__all__ = ["BadPart", "Environment", "Part", "ToolError", "read_bytes", "read_json"]

StateT = TypeVar("StateT")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_HOST: Final = "0.0.0.0"  # noqa: S104 - a container is reached from outside
DEFAULT_PORT: Final = 18765
NAME_VARIABLE: Final = "ENVIRONMENT_NAME"
HOST_VARIABLE: Final = "MCP_HOST"
PORT_VARIABLE: Final = "MCP_PORT"
_SHUTDOWN_SECONDS: Final = 1
"""Streams of agents stay open for ever; a server that was told to stop does not wait."""
_EXTENSION_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*")


class ToolError(Refusal):
    """Raised by a tool for what the caller did wrong; the agent reads the text."""


class Environment(Generic[StateT]):
    """An environment: an MCP server with a state, a data plane and a card.

    Tools, data plane and extensions run one at a time, so they need no locks. Read
    ``env.state`` each time: reset and add replace it.

    Args:
        name: the ``environment_name``; the variable ``ENVIRONMENT_NAME``, which the
            deployer sets, goes first.
        state: what the state is when empty: a dict of JSON values or a pydantic model.
        instructions: what the server tells agents of itself.

    Raises:
        ValueError: there is no name.
        MissingExtra: the ``mcp`` SDK is not installed.
    """

    state: StateT

    def __init__(
        self,
        name: str | None = None,
        *,
        state: StateT,
        instructions: str | None = None,
    ) -> None:
        self.name = os.environ.get(NAME_VARIABLE) or name or ""
        if not self.name:
            raise ValueError(
                f"an environment needs a name: Environment('mail', ...) or {NAME_VARIABLE}"
            )
        with needs("agents", "an environment"):
            from mcp.server import MCPServer
        self._empty = copy.deepcopy(state)
        self.state = copy.deepcopy(state)
        self._server = MCPServer(
            self.name, instructions=instructions, log_level="WARNING"
        )
        self._tools: set[str] = set()
        self._extensions: list[ServedExtension] = []
        self._lock = anyio.Lock()
        self._reset: Callable[[], Any] = self._reset_state
        self._add: Callable[[Sequence[Part]], Any] = self._add_to_state
        self._get: Callable[[], Any] = self._whole_state

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(
        self, /, *, name: str | None = None, description: str | None = None
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
    ) -> Callable[..., Any]:
        """Offer a function, plain or async, as a tool.

        The types of its parameters become the tool's schema, the docstring its
        description. Arguments that do not fit, and exceptions, are the agent's to read:
        a :class:`ToolError` as it is, another exception with its type. The function
        stays what it was and can be called directly.

        Raises:
            ValueError: there is a tool of that name already.
        """

        def offer(function: F) -> F:
            named = name or function.__name__
            if named in self._tools:
                raise ValueError(
                    f"environment {self.name!r} has a tool {named!r} already"
                )
            self._server.add_tool(
                self._one_at_a_time(function),
                name=named,
                description=inspect.cleandoc(description or function.__doc__ or ""),
            )
            self._tools.add(named)
            return function

        return offer if function is None else offer(function)

    def on_reset(self, function: F) -> F:
        """Do this for ``data/reset``: ``function()`` empties the state."""
        self._reset = function
        return function

    def on_add(self, function: F) -> F:
        """Do this for ``data/add``: ``function(parts)`` adds to the state.

        :func:`read_json` and :func:`read_bytes` read a part of any kind.
        """
        self._add = function
        return function

    def on_get(self, function: F) -> F:
        """Do this for ``data/get``: ``function()`` gives a JSON object, or parts."""
        self._get = function
        return function

    def extension(
        self, uri: str, name: str, *, description: str = ""
    ) -> Callable[[F], F]:
        """Serve ``POST /agentenv/ext/<name>``: ``function(body)`` gives JSON.

        Raises:
            ValueError: the name is not of lowercase letters, digits and ``-``, or taken.
        """
        if not _EXTENSION_NAME.fullmatch(name):
            raise ValueError(
                f"extension {name!r}: lowercase letters, digits and - only"
            )
        if any(name == known.name for known in self._extensions):
            raise ValueError(
                f"environment {self.name!r} has an extension {name!r} already"
            )

        def offer(function: F) -> F:
            call = self._one_at_a_time(function, told=False)
            self._extensions.append(
                ServedExtension(uri, name, description or function.__doc__ or "", call)
            )
            return function

        return offer

    def reset(self) -> None:
        """Make ``state`` empty again, as ``data/reset`` does by default."""
        self._reset_state()

    def run(self, *, host: str | None = None, port: int | None = None) -> None:
        """Serve until SIGTERM or Ctrl-C, on ``MCP_HOST``:``MCP_PORT`` (0.0.0.0:18765).

        Prints ``environment NAME: listening on URL`` when connections are taken; port 0
        is a free one. Ends the process with a message when it cannot listen.
        """
        where = host or os.environ.get(HOST_VARIABLE) or DEFAULT_HOST
        wanted = os.environ.get(PORT_VARIABLE) or DEFAULT_PORT if port is None else port
        try:
            listening = socket.create_server((where, _port(wanted)), backlog=128)
        except (OSError, ValueError) as error:
            sys.exit(
                f"environment {self.name}: cannot listen on {where}:{wanted}: {error}"
            )
        with listening:
            bound = listening.getsockname()[1]
            server = self._uvicorn()
            print(  # noqa: T201 - the log of a server
                f"environment {self.name}: listening on http://{where}:{bound}",
                flush=True,
            )
            with contextlib.suppress(KeyboardInterrupt):
                server.run(sockets=[listening])

    @contextlib.contextmanager
    def serving(self, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
        """Serve in a thread while the block runs, for tests; gives the base URL."""
        with socket.create_server((host, port), backlog=128) as listening:
            server = self._uvicorn()
            thread = threading.Thread(
                target=server.run,
                kwargs={"sockets": [listening]},
                name=f"environment {self.name}",
                daemon=True,
            )
            thread.start()
            try:
                yield f"http://{host}:{listening.getsockname()[1]}"
            finally:
                server.should_exit = True
                thread.join()

    def app(self) -> Starlette:
        """The ASGI application, for a server of your own. Made anew by each call."""
        from mcp.server.transport_security import TransportSecuritySettings

        self._lock = anyio.Lock()
        # Sandboxes call it by addresses and names that nobody knows beforehand.
        anybody = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        app = self._server.streamable_http_app(
            streamable_http_path=MCP_PATH, transport_security=anybody
        )
        env_server.add_routes(app, self._served())
        return app

    async def card(self) -> Mapping[str, Any]:
        """The card, as served at ``/.well-known/agent-env.json``."""
        tools = [
            {
                "name": tool.name,
                "description": tool.description or "",
                "inputSchema": tool.input_schema,
            }
            for tool in await self._server.list_tools()
        ]
        return env_server.make_card(self.name, tools, self._extensions)

    def _served(self) -> Served:
        async def add(parts: Sequence[Part]) -> None:
            await self._alone(self._add, parts)

        async def reset() -> None:
            await self._alone(self._reset)

        async def get() -> Sequence[Part]:
            return _as_parts(await self._alone(self._get))

        return Served(reset, add, get, self.card, self._extensions)

    def _uvicorn(self) -> uvicorn.Server:
        with needs("agents", "an environment"):
            import uvicorn
        config = uvicorn.Config(
            self.app(),
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        return uvicorn.Server(config)

    async def _alone(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call an author's function while no other one runs; a plain one in a thread."""
        async with self._lock:
            return await _call(function, *args)

    def _one_at_a_time(
        self, function: Callable[..., Any], *, told: bool = True
    ) -> Callable[..., Awaitable[Any]]:
        """``function`` as the server calls it; with ``told`` its errors are the agent's."""

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await self._alone(functools.partial(function, *args, **kwargs))
            except Exception as error:
                if not told:
                    raise
                raise _for_the_agent(error) from error

        return call

    def _reset_state(self) -> None:
        self.state = copy.deepcopy(self._empty)

    def _add_to_state(self, parts: Sequence[Part]) -> None:
        state = _as_json(self.state)
        for part in parts:
            added = read_json(part)
            if not isinstance(added, dict):
                raise BadPart("the data is no JSON object")
            state = merged(state, added)
        self.state = _of_type(self.state, state)

    def _whole_state(self) -> Any:
        return self.state


def _port(value: str | int) -> int:
    port = int(value)
    if not 0 <= port <= 65535:
        raise ValueError("a port must be 0-65535")
    return port


async def _call(function: Callable[..., Any], *args: Any) -> Any:
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.iscoroutinefunction(inner):
        return await function(*args)
    return await anyio.to_thread.run_sync(functools.partial(function, *args))


def _for_the_agent(error: Exception) -> Exception:
    from mcp.server.mcpserver.exceptions import ToolError as SdkToolError
    from mcp.shared.exceptions import MCPError

    if isinstance(error, (SdkToolError, MCPError)):
        return error
    if not isinstance(error, Refusal):
        traceback.print_exception(error)
    return SdkToolError(env_server.in_words(error))


def _as_json(state: Any) -> dict[str, Any]:
    if hasattr(state, "model_dump"):
        return cast("dict[str, Any]", state.model_dump(mode="json"))
    return cast("dict[str, Any]", copy.deepcopy(state))


def _of_type(state: Any, values: Mapping[str, Any]) -> Any:
    """A state of the author's kind; a pydantic model checks the values."""
    return state.model_validate(values) if hasattr(state, "model_validate") else values


def _as_parts(state: Any) -> Sequence[Part]:
    if isinstance(state, list) and state and all(map(env_server.is_part, state)):
        return state
    return [{"kind": "data", "data": _as_json(state)}]
