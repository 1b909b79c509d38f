"""Failures of requests to a model, as CLIs report them. Pure."""

from __future__ import annotations

import re
from typing import Final

from pytest_harbor.errors import (
    AGENT_AUTH_ERROR,
    AGENT_CONFIG_ERROR,
    AGENT_RATE_LIMITED,
    AGENT_REQUEST_FAILED,
    AGENT_RUN_ERROR,
    AGENT_TOKEN_LIMIT,
    AgentError,
)

TOO_LONG: Final = re.compile(
    r"(?i)prompt is too long|context.?(window|length)|maximum context|too many tokens"
)
OUT_OF_CREDIT: Final = re.compile(r"(?i)insufficient.?quota|credit balance|billing")
MAX_MESSAGE_CHARS: Final = 600

_KIND_OF_STATUS: Final = {
    401: AGENT_AUTH_ERROR,
    402: AGENT_AUTH_ERROR,
    403: AGENT_AUTH_ERROR,
    408: AGENT_REQUEST_FAILED,
    429: AGENT_RATE_LIMITED,
}


def request_failure(message: str, status: int | None) -> AgentError:
    """The failure of a request that the model's endpoint answered with ``status``.

    A conversation that grew too long is a limit that the agent reached, whatever status the
    endpoint gives it; an account without credit is no rate limit that waiting helps.
    """
    text = message.strip()[:MAX_MESSAGE_CHARS] or "the request to the model failed"
    if status in (400, 413, 422, None) and TOO_LONG.search(text):
        return AgentError(text, AGENT_TOKEN_LIMIT)
    if status == 429 and OUT_OF_CREDIT.search(text):
        return AgentError(text, AGENT_AUTH_ERROR, 402)
    if status is None:
        return AgentError(text, AGENT_RUN_ERROR)
    if status >= 500:
        return AgentError(text, AGENT_REQUEST_FAILED, status)
    return AgentError(text, _KIND_OF_STATUS.get(status, AGENT_CONFIG_ERROR), status)
