"""JSON-RPC 2.0 as data: what an answer means. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pytest_harbor.errors import ProtocolError, ServerRefused
from pytest_harbor.protocols.excerpts import excerpt

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
SERVER_ERROR: Final = -32000


def request(method: str, params: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """A request object."""
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def read_answer(
    body: bytes, *, method: str, request_id: object, url: str, status: int = 200
) -> Any:
    """The ``result`` of an answer to ``method``.

    Raises:
        ServerRefused: the answer is an error; ``code`` is its ``data.code`` if that is a
            text (the data plane's ``add_failed``), else the number.
        ProtocolError: it is no answer to this request.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as cause:
        raise ProtocolError(
            f"{method}: {url} answered no JSON: {excerpt(body) or '(nothing)'}", url=url
        ) from cause
    if not isinstance(answer, dict):
        raise ProtocolError(
            f"{method}: {url} answered no JSON-RPC object: {excerpt(body)}", url=url
        )
    error = answer.get("error")
    if error is not None:
        raise _refusal(error, method=method, url=url, status=status)
    if "result" not in answer:
        raise ProtocolError(
            f"{method}: {url} answered neither result nor error: {excerpt(body)}",
            url=url,
        )
    if answer.get("id") != request_id:
        raise ProtocolError(
            f"{method}: {url} answered another request "
            f"(id {excerpt(str(answer.get('id')), characters=60)})",
            url=url,
        )
    return answer["result"]


def _refusal(error: object, *, method: str, url: str, status: int) -> ServerRefused:
    fields: Mapping[str, Any] = error if isinstance(error, dict) else {}
    message = excerpt(str(fields.get("message") or error))
    data = fields.get("data")
    named = data.get("code") if isinstance(data, dict) else None
    number = fields.get("code")
    code = named if isinstance(named, str) else number
    if not isinstance(code, (int, str)):
        code = None
    said = f" ({code})" if code is not None else ""
    if status >= 400:
        said += f" (HTTP {status})"
    return ServerRefused(
        f"{method} failed: {message}{said}",
        url=url,
        status=status,
        code=code,
        body=message,
    )
