"""What a failed request of the ``chat`` agent is, and whether to ask again. Pure."""

from __future__ import annotations

from typing import Final

from pytest_harbor.errors import (
    AGENT_AUTH_ERROR,
    AGENT_CONFIG_ERROR,
    AGENT_RATE_LIMITED,
    AGENT_REQUEST_FAILED,
    AGENT_TOKEN_LIMIT,
    AgentError,
    MissingExtra,
    ProtocolError,
    ServerRefused,
    ServerTimeout,
)

LONGEST_PAUSE_SECONDS: Final = 60.0

_PASSING: Final = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""Answers that may be others a moment later."""
_TOO_LONG: Final = "context_length_exceeded"
"""What OpenAI and those that speak like it call a conversation that is too long."""
_NO_CREDIT: Final = "insufficient_quota"
"""Answered with 429; but no waiting helps."""


def failure_of(error: Exception) -> AgentError:
    """What a failed request is to the outcome policy (spec 17)."""
    status, code = None, None
    if isinstance(error, ServerRefused):
        status, code = error.status, error.code
    if code == _TOO_LONG:
        # A limit, and so an ordinary end; its status would make it a failure.
        return AgentError(str(error), AGENT_TOKEN_LIMIT)
    if code == _NO_CREDIT:
        return AgentError(str(error), AGENT_AUTH_ERROR)
    kind = AGENT_REQUEST_FAILED
    if status in (401, 402, 403):
        kind = AGENT_AUTH_ERROR
    elif status == 429:
        kind = AGENT_RATE_LIMITED
    elif isinstance(error, MissingExtra) or _is_our_fault(status):
        kind = AGENT_CONFIG_ERROR
    return AgentError(str(error), kind, status)


def _is_our_fault(status: int | None) -> bool:
    """Whether the endpoint refuses the request itself, so that no other try helps."""
    return status is not None and status < 500 and status not in _PASSING


def may_pass(error: ProtocolError) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, ServerRefused):
        return error.status in _PASSING and error.code != _NO_CREDIT
    return not isinstance(error, ServerTimeout)


def pause_before_retry(error: ProtocolError, pause: float) -> float:
    """Seconds before the next try: what the endpoint asks for, within reason."""
    asked = error.retry_after_seconds if isinstance(error, ServerRefused) else None
    return max(pause, min(asked or 0.0, LONGEST_PAUSE_SECONDS))
