"""An agent written with the a2a-sdk alone, as its samples are: it does what it is told.

The first word of a message is the command: ``say``, ``fail``, ``reject``, ``ask``,
``login``, ``artifact``, ``message``, ``data``, ``lines``, ``echo``, ``work``, ``crash``.
"""

from __future__ import annotations

import asyncio
import json
import threading

from a2a.helpers import new_data_part, new_message, new_task_from_user_message
from a2a.helpers import new_text_part as text
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
)
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


class Executor(AgentExecutor):
    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.polled = threading.Event()

    async def execute(self, context, queue) -> None:
        command, _, rest = context.get_user_input().partition(" ")
        if command == "message":
            answer = new_message([text(rest)], context_id=context.context_id)
            await queue.enqueue_event(answer)
            return
        if context.current_task is None:
            await queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        await updater.start_work(updater.new_agent_message([text("working on it")]))
        await getattr(self, command)(updater, rest, context)

    async def cancel(self, context, queue) -> None:
        self.cancelled.append(context.task_id)
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()

    async def say(self, updater, rest, context) -> None:
        await updater.complete(updater.new_agent_message([text(rest)]))

    async def fail(self, updater, rest, context) -> None:
        told = {"error_code": "E7", "error_type": "infra_error", "error_message": rest}
        parts = [text("I cannot"), new_data_part(told)]
        await updater.failed(updater.new_agent_message(parts))

    async def reject(self, updater, rest, context) -> None:
        await updater.reject(updater.new_agent_message([text(rest)]))

    async def ask(self, updater, rest, context) -> None:
        await updater.requires_input(updater.new_agent_message([text(rest)]))

    async def login(self, updater, rest, context) -> None:
        await updater.requires_auth(updater.new_agent_message([text(rest)]))

    async def artifact(self, updater, rest, context) -> None:
        await updater.add_artifact([text(rest)], name="answer")
        await updater.complete()

    async def lines(self, updater, rest, context) -> None:
        parts = [text(line) for line in rest.split()]
        await updater.complete(updater.new_agent_message(parts))

    async def data(self, updater, rest, context) -> None:
        parts = [text("see the data"), new_data_part(json.loads(rest))]
        await updater.complete(updater.new_agent_message(parts))

    async def echo(self, updater, rest, context) -> None:
        await updater.complete(updater.new_agent_message(list(context.message.parts)))

    async def work(self, updater, rest, context) -> None:
        await asyncio.sleep(float(rest))
        await updater.complete(updater.new_agent_message([text("done")]))

    async def crash(self, updater, rest, context) -> None:
        raise RuntimeError(rest)


def build(wire: str, *, path: str = "/rpc", extensions: dict | None = None):
    """The application and its executor. ``wire`` is ``0.3`` or ``1.0``."""
    executor = Executor()
    listed = []
    for uri, params in (extensions or {}).items():
        listed.append(AgentExtension(uri=uri))
        listed[-1].params.update(params)
    card = AgentCard(
        name="sample",
        description="An agent of the SDK's kind.",
        version="1.0.0",
        # What such a server believes its address to be.
        supported_interfaces=[
            AgentInterface(
                url=f"http://0.0.0.0:9{path}",
                protocol_binding="JSONRPC",
                protocol_version=wire,
            )
        ],
        capabilities=AgentCapabilities(extensions=listed),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="do", name="do", description="Does it.", tags=["x"])],
    )
    handler = DefaultRequestHandler(executor, InMemoryTaskStore(), card)
    routes = create_jsonrpc_routes(handler, path, enable_v0_3_compat=wire == "0.3")
    if wire == "1.0":
        routes += create_agent_card_routes(card)
    else:
        routes.append(Route("/.well-known/agent.json", _card_of_0_3(card)))
    return _Recording(Starlette(routes=routes), executor), executor


class _Recording:
    """Notes which methods of the protocol are called."""

    def __init__(self, app, executor: Executor) -> None:
        self._app = app
        self._executor = executor

    async def __call__(self, scope, receive, send) -> None:
        async def listen():
            event = await receive()
            if event.get("body", b"").startswith(b"{"):
                headers = dict(scope["headers"])
                version = headers.get(b"a2a-version", b"").decode()
                method = json.loads(event["body"])["method"]
                self._executor.calls.append((method, version))
                if method in ("tasks/get", "GetTask"):
                    self._executor.polled.set()
            return event

        await self._app(scope, listen, send)


def _card_of_0_3(card: AgentCard):
    from a2a.compat.v0_3.conversions import to_compat_agent_card

    document = to_compat_agent_card(card).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )

    async def answer(_request):
        return JSONResponse(document)

    return answer
