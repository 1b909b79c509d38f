"""Serve an environment: its card, data plane, tools and extensions (task-steps spec 11).

The server is a :class:`Served` of plain functions; ``pytest_harbor.env`` makes one of
what an author writes. This module imports starlette inside functions.
"""

from __future__ import annotations

import json
import os
import secrets
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_harbor.protocols import json_rpc
from pytest_harbor.protocols.connections import MAX_BODY_BYTES
from pytest_harbor.protocols.data_plane import (
    ADD,
    CARD_PATH,
    DATA_PATH,
    GET,
    MCP_PATH,
    RESET,
    TOKEN_VARIABLE,
)
from pytest_harbor.protocols.env_state import Refusal
from pytest_harbor.protocols.reply import Part

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

PROTOCOL_VERSION: Final = "1.0"
EXTENSION_PATH: Final = f"{DATA_PATH}/ext"
_FAILED: Final = {RESET: "reset_failed", ADD: "add_failed", GET: "get_failed"}

Extend = Callable[[dict[str, Any]], Awaitable[Any]]


@dataclass(frozen=True)
class ServedExtension:
    """An extension of the card: ``POST /agentenv/ext/<name>`` calls ``call``."""

    uri: str
    name: str
    description: str
    call: Extend


@dataclass(frozen=True)
class Served:
    """What a server serves. The three functions raise to refuse; the text is told."""

    reset: Callable[[], Awaitable[None]]
    add: Callable[[Sequence[Part]], Awaitable[None]]
    get: Callable[[], Awaitable[Sequence[Part]]]
    card: Callable[[], Awaitable[Mapping[str, Any]]]
    extensions: Sequence[ServedExtension] = ()


def make_card(
    name: str,
    tools: Sequence[Mapping[str, Any]],
    extensions: Sequence[ServedExtension] = (),
) -> dict[str, Any]:
    """The card of an environment with all three operations."""
    return {
        "name": name,
        "protocolVersion": PROTOCOL_VERSION,
        "url": DATA_PATH,
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [{"url": MCP_PATH, "transport": "mcp"}],
        "capabilities": {
            "operations": [RESET, ADD, GET],
            "tools": list(tools),
            "extensions": [
                {
                    "uri": extension.uri,
                    "description": extension.description,
                    "params": {
                        "endpoint": f"{EXTENSION_PATH}/{extension.name}",
                        "methods": {extension.name: {"method": "POST"}},
                    },
                }
                for extension in extensions
            ],
        },
    }


def add_routes(app: Starlette, served: Served) -> None:
    """Put the card, the data plane and the extensions into ``app``."""
    from starlette.responses import JSONResponse

    async def card(_request: Request) -> Response:
        return JSONResponse(dict(await served.card()))

    async def data(request: Request) -> Response:
        if not _allowed(request):
            return JSONResponse({"error": "not for agents"}, status_code=403)
        return JSONResponse(await answer(served, await _body(request)))

    app.router.add_route(CARD_PATH, card, methods=["GET"])
    app.router.add_route(DATA_PATH, data, methods=["POST"])
    for extension in served.extensions:
        path = f"{EXTENSION_PATH}/{extension.name}"
        app.router.add_route(path, _extension(extension), methods=["POST"])


def _allowed(request: Request) -> bool:
    """Whether this is the harness: agents reach the same port, and must not load data."""
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        return True
    sent = request.headers.get("authorization", "")
    return secrets.compare_digest(sent.encode(), f"Bearer {token}".encode())


def _extension(
    extension: ServedExtension,
) -> Callable[[Request], Awaitable[Response]]:
    from starlette.responses import JSONResponse

    async def call(request: Request) -> Response:
        if not _allowed(request):
            return JSONResponse({"error": "not for agents"}, status_code=403)
        content = await _body(request)
        try:
            body = json.loads(content or b"{}")
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return JSONResponse({"error": "the body is no object"}, status_code=400)
        try:
            return JSONResponse(await extension.call(body))
        except Exception as error:  # noqa: BLE001 - an author's function
            traceback.print_exc()
            return JSONResponse({"error": in_words(error)}, status_code=500)

    return call


async def _body(request: Request) -> bytes:
    from starlette.exceptions import HTTPException

    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, "the request is too large")
    return bytes(body)


def in_words(error: BaseException) -> str:
    """What an author's exception says to others: its type unless it is a plain refusal."""
    text = str(error)
    if type(error) is ValueError or isinstance(error, Refusal):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def answer(served: Served, body: bytes) -> dict[str, Any]:
    """The JSON-RPC answer of the data plane to a request's body."""
    try:
        request = _request(body)
    except _Refused as refusal:
        return refusal.answer
    try:
        result = await _do(served, request.method, request.params)
    except Exception as error:  # noqa: BLE001 - an author's function
        traceback.print_exc()
        return _Refused(
            request.id,
            json_rpc.SERVER_ERROR,
            in_words(error),
            {"code": _FAILED[request.method]},
        ).answer
    return {"jsonrpc": "2.0", "id": request.id, "result": result}


@dataclass(frozen=True)
class _Request:
    id: str | int
    method: str
    params: Mapping[str, Any]


class _Refused(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        request_id: str | int | None,
        code: int,
        message: str,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        error: dict[str, Any] = {"code": code, "message": message}
        if data:
            error["data"] = data
        self.answer = {"jsonrpc": "2.0", "id": request_id, "error": error}


def _request(body: bytes) -> _Request:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _Refused(
            None, json_rpc.PARSE_ERROR, f"the request is no JSON: {error}"
        ) from error
    if not isinstance(request, dict) or request.get("jsonrpc") != "2.0":
        raise _Refused(None, json_rpc.INVALID_REQUEST, "no JSON-RPC 2.0 request")
    request_id, method = request.get("id"), request.get("method")
    if not isinstance(request_id, (str, int)) or not isinstance(method, str):
        raise _Refused(None, json_rpc.INVALID_REQUEST, "`id` or `method` is missing")
    if method not in _FAILED:
        known = ", ".join(_FAILED)
        raise _Refused(
            request_id,
            json_rpc.METHOD_NOT_FOUND,
            f"no method {method!r}; there are: {known}",
        )
    params = request.get("params", {})
    if problem := _bad_params(method, params):
        raise _Refused(request_id, json_rpc.INVALID_PARAMS, problem)
    return _Request(request_id, method, params)


async def _do(served: Served, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    if method == RESET:
        await served.reset()
        return {}
    if method == ADD:
        await served.add(params["parts"])
        return {}
    return {"parts": list(await served.get())}


def _bad_params(method: str, params: object) -> str | None:
    """What is wrong with the parameters; None when nothing is."""
    if not isinstance(params, dict):
        return "`params` is no object"
    if method != ADD:
        return None
    parts = params.get("parts")
    if not isinstance(parts, list) or not parts:
        return "`parts` must be a list of at least one part"
    for number, part in enumerate(parts, start=1):
        if not is_part(part):
            return f"part {number} is no data, text or file part"
    return None


def is_part(part: object) -> bool:
    """Whether ``part`` has one of the three forms of spec 11."""
    if not isinstance(part, dict):
        return False
    kind = part.get("kind")
    if kind == "text":
        return isinstance(part.get("text"), str)
    if kind == "data":
        return isinstance(part.get("data"), dict)
    file = part.get("file")
    return (
        kind == "file"
        and isinstance(file, dict)
        and any(isinstance(file.get(key), str) for key in ("uri", "bytes"))
    )
