"""Serve an agent over A2A, in wire versions 0.3 and 1.0 (task-steps spec 12).

An agent is a class with one method, :meth:`.ServedAgent.answer`. The server around it is the
official SDK's, plus the four extensions that steps use: tools of MCP servers, skills,
configuration, trajectories. ``serve`` listens where ``A2A_PORT`` says.
"""

from __future__ import annotations

import os
import secrets
import socket
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pytest_harbor.protocols.agent_card import (
    AGENT_CONFIG,
    CARD_PATHS,
    FALLBACK_PATH,
    MCP_CONFIG,
    SKILL_CONFIG,
    SKILL_NAME,
    TOKEN_VARIABLE,
    TRAJECTORY,
)
from pytest_harbor.protocols.extras import needs
from pytest_harbor.protocols.reply import AGENT_ERROR, Part, State
from pytest_harbor.protocols.served_agent import (
    AgentSetup,
    Answer,
    Incoming,
    McpServer,
    ServedAgent,
    Skill,
)

if TYPE_CHECKING:
    from a2a.server.agent_execution import AgentExecutor
    from a2a.types import a2a_pb2
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

DEFAULT_PORT: Final = 8000
_SHUTDOWN_SECONDS: Final = 1
"""What a turn under way gets when the server is told to stop."""
HOST_VARIABLE: Final = "A2A_HOST"
PORT_VARIABLE: Final = "A2A_PORT"


async def serve(
    agent: ServedAgent, *, host: str | None = None, port: int | None = None
) -> None:
    """Serve ``agent`` until the process is told to stop (SIGTERM, SIGINT) or cancelled.

    Without ``host`` and ``port`` the environment variables ``A2A_HOST`` (default: every
    interface, as a container needs it) and ``A2A_PORT`` (8000) say where; port 0 takes a
    free one. The card can be read as soon as the line ``listening on URL`` is out. With
    ``HARBOR_AGENT_TOKEN`` it serves nothing else to those who do not have the token.

    Raises:
        MissingExtra: the ``agents`` extra is not installed.
        OSError: the port is taken.
    """
    with needs("agents", "serving an A2A agent"):
        import uvicorn
    where = os.environ.get(HOST_VARIABLE, "0.0.0.0") if host is None else host  # noqa: S104
    chosen = int(os.environ.get(PORT_VARIABLE, DEFAULT_PORT)) if port is None else port
    listening = socket.create_server((where, chosen), backlog=128)
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        app = create_app(agent, token=os.environ.pop(TOKEN_VARIABLE, None))
        # A person reads this log when the agent fails: requests are its noise.
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        print(f"listening on {url}", flush=True)  # noqa: T201 - the log of a server
        await uvicorn.Server(config).serve(sockets=[listening])
    finally:
        listening.close()
        await agent.aclose()


def create_app(agent: ServedAgent, *, token: str | None = None) -> Starlette:
    """The ASGI application of ``agent``. Raises MissingExtra.

    Its card names the address that it was asked at: a server in a sandbox knows no other.
    With ``token`` all but the card is for those who send ``Authorization: Bearer <token>``:
    other agents of the machine may reach the port.
    """
    with needs("agents", "serving an A2A agent"):
        from a2a.server.request_handlers import DefaultRequestHandler
        from a2a.server.request_handlers.response_helpers import agent_card_to_dict
        from a2a.server.routes import create_jsonrpc_routes
        from a2a.server.tasks import InMemoryTaskStore
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route

    async def card(request: Request) -> Response:
        url = str(request.base_url).rstrip("/")
        return _done(agent_card_to_dict(_card(agent, url)))

    desk = _Desk(agent)
    handler = DefaultRequestHandler(
        _executor(desk), InMemoryTaskStore(), _card(agent, "http://127.0.0.1")
    )
    routes = [Route(path, card, methods=["GET"]) for path in CARD_PATHS]
    routes += desk.routes()
    routes += create_jsonrpc_routes(handler, FALLBACK_PATH, enable_v0_3_compat=True)
    guards = [Middleware(_Guard, token=token)] if token else []
    return Starlette(routes=routes, middleware=guards)


class _Guard:
    """Lets through who has the token, and who reads the card."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in CARD_PATHS:
            sent = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(sent, self._wanted):
                await _refused("not for other agents", 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Desk:
    """What the extensions set and give, and the agent that works with it."""

    def __init__(self, agent: ServedAgent) -> None:
        self.agent = agent
        self.trajectories: dict[str, Any] = {}
        self._mcp_servers: dict[str, McpServer] = {}
        self._skills: dict[str, Skill] = {}
        self._values: dict[str, Any] = {}

    def setup(self) -> AgentSetup:
        """The state as a turn finds it, which later calls do not change."""
        return AgentSetup(
            dict(self._mcp_servers), dict(self._skills), dict(self._values)
        )

    def routes(self) -> list[Route]:
        """The endpoints of the extensions that the agent offers."""
        from starlette.routing import Route

        calls: dict[str, list[tuple[str, Callable[..., Awaitable[Response]]]]] = {
            MCP_CONFIG: [("POST", self._add_mcp), ("GET", self._list_mcp)],
            SKILL_CONFIG: [("POST", self._add_skill)],
            AGENT_CONFIG: [("POST", self._configure)],
            TRAJECTORY: [("POST", self._trajectory)],
        }
        return [
            Route(endpoint(uri), call, methods=[method])
            for uri, handlers in calls.items()
            if uri in self.agent.offers
            for method, call in handlers
        ]

    async def _add_mcp(self, request: Request) -> Response:
        body = await _body(request)
        url = body.get("url")
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            return _refused("'url' must be an http(s) address")
        name = str(body.get("name") or f"server{len(self._mcp_servers) + 1}")
        headers = {str(key): str(value) for key, value in _object(body, "headers")}
        self._mcp_servers[name] = McpServer(name, url, headers)
        return _done({"name": name})

    async def _list_mcp(self, _request: Request) -> Response:
        return _done(
            {
                "mcp_servers": {
                    server.name: {
                        "url": server.url,
                        "has_headers": bool(server.headers),
                    }
                    for server in self._mcp_servers.values()
                }
            }
        )

    async def _add_skill(self, request: Request) -> Response:
        body = await _body(request)
        fields = [body.get(key) for key in ("name", "description", "skill_md")]
        if not all(isinstance(value, str) for value in fields):
            return _refused("'name', 'description' and 'skill_md' must be strings")
        if not SKILL_NAME.fullmatch(str(fields[0])):
            return _refused(f"{fields[0]!r} is no name of a skill")
        skill = Skill(*map(str, fields))
        self._skills[skill.name] = skill
        return _done({"name": skill.name})

    async def _configure(self, request: Request) -> Response:
        body = await _body(request)
        if unknown := sorted(set(body) - set(self.agent.config_keys)):
            return _refused(f"{unknown[0]!r} cannot be set")
        self._values.update(body)
        return _done({"set": sorted(body)})

    async def _trajectory(self, request: Request) -> Response:
        task_id = (await _body(request)).get("task_id")
        if task_id not in self.trajectories:
            return _refused(f"no trajectory of task {task_id!r}", 404)
        return _done({"trajectory": self.trajectories[task_id]})


def endpoint(uri: str) -> str:
    """The path of an extension: ``urn:agentenv:mcp-config/v1`` -> ``/ext/mcp-config``."""
    return "/ext/" + uri.rpartition(":")[2].partition("/")[0]


async def _body(request: Request) -> dict[str, Any]:
    from starlette.exceptions import HTTPException

    try:
        body = await request.json()
    except ValueError:
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body is no JSON object")
    return body


def _object(body: Mapping[str, Any], key: str) -> list[tuple[Any, Any]]:
    value = body.get(key)
    return list(value.items()) if isinstance(value, dict) else []


def _done(content: Mapping[str, Any]) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(dict(content))


def _refused(message: str, status: int = 400) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": message}, status_code=status)


def _card(agent: ServedAgent, url: str) -> a2a_pb2.AgentCard:
    from a2a.types import a2a_pb2

    takes = {
        MCP_CONFIG: ("add", ["url", "name", "headers"]),
        SKILL_CONFIG: ("add", ["name", "description", "skill_md"]),
        AGENT_CONFIG: ("set", list(agent.config_keys)),
        TRAJECTORY: ("get", ["task_id"]),
    }
    extensions = []
    for uri in agent.offers:
        method, keys = takes[uri]
        extension = a2a_pb2.AgentExtension(uri=uri)
        extension.params.update(
            {
                "endpoint": endpoint(uri),
                "methods": {method: {"request": {"supported": keys}}},
            }
        )
        extensions.append(extension)
    return a2a_pb2.AgentCard(
        name=agent.name,
        description=agent.description or agent.name,
        version=agent.version,
        supported_interfaces=[
            a2a_pb2.AgentInterface(
                url=url + FALLBACK_PATH,
                protocol_binding="JSONRPC",
                protocol_version=wire,
            )
            for wire in ("1.0", "0.3")
        ],
        capabilities=a2a_pb2.AgentCapabilities(extensions=extensions),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[
            a2a_pb2.AgentSkill(
                id="answer", name="answer", description="Answers.", tags=["agent"]
            )
        ],
    )


def _executor(desk: _Desk) -> AgentExecutor:
    from a2a.helpers import proto_helpers
    from a2a.server.agent_execution import AgentExecutor, RequestContext
    from a2a.server.events import EventQueue
    from a2a.server.tasks import TaskUpdater
    from a2a.types import a2a_pb2

    states = {
        State.COMPLETED: a2a_pb2.TASK_STATE_COMPLETED,
        State.FAILED: a2a_pb2.TASK_STATE_FAILED,
        State.CANCELED: a2a_pb2.TASK_STATE_CANCELED,
        State.REJECTED: a2a_pb2.TASK_STATE_REJECTED,
        State.INPUT_REQUIRED: a2a_pb2.TASK_STATE_INPUT_REQUIRED,
        State.AUTH_REQUIRED: a2a_pb2.TASK_STATE_AUTH_REQUIRED,
    }

    class Executor(AgentExecutor):
        async def execute(self, context: RequestContext, queue: EventQueue) -> None:
            message = _incoming(context)
            if desk.agent.answers_at_once(message):
                answer = await _answer(desk, message)
                await queue.enqueue_event(
                    proto_helpers.new_message(
                        _core_parts(answer), context_id=message.context_id
                    )
                )
                return
            if context.current_task is None:
                assert context.message is not None
                task = proto_helpers.new_task_from_user_message(context.message)
                await queue.enqueue_event(task)
            updater = TaskUpdater(queue, message.task_id, message.context_id)
            await updater.start_work()
            answer = await _answer(desk, message)
            desk.trajectories[message.task_id] = answer.trajectory
            await updater.update_status(
                states[answer.state], updater.new_agent_message(_core_parts(answer))
            )

        async def cancel(self, context: RequestContext, queue: EventQueue) -> None:
            assert context.task_id is not None
            assert context.context_id is not None
            await TaskUpdater(queue, context.task_id, context.context_id).cancel()

    return Executor()


async def _answer(desk: _Desk, message: Incoming) -> Answer:
    try:
        return await desk.agent.answer(message, desk.setup())
    except Exception as error:  # noqa: BLE001 - an agent of any kind
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        return Answer(
            text,
            State.FAILED,
            data=({"error_type": AGENT_ERROR, "error_message": text},),
        )


def _incoming(context: Any) -> Incoming:
    from a2a.compat.v0_3 import conversions

    parts = tuple(
        conversions.to_compat_part(part).model_dump(
            mode="json", by_alias=True, exclude_none=True
        )
        for part in context.message.parts
    )
    return Incoming(
        text="\n".join(part["text"] for part in parts if part["kind"] == "text"),
        parts=parts,
        task_id=context.task_id,
        context_id=context.context_id,
    )


def _core_parts(answer: Answer) -> list[a2a_pb2.Part]:
    from a2a.compat.v0_3 import conversions, types

    written: list[Part] = []
    if answer.text:
        written.append({"kind": "text", "text": answer.text})
    written += [{"kind": "data", "data": dict(data)} for data in answer.data]
    written += answer.parts
    return [
        conversions.to_core_part(types.Part.model_validate(dict(part)))
        for part in written
    ]
