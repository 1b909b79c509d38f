"""What came of one message to an agent (spec 3.3, 7.2)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Part: TypeAlias = Mapping[str, Any]
"""``{"kind": "text", "text"}``, ``{"kind": "data", "data"}`` or ``{"kind": "file",
"file": {"uri" | "bytes" (base64), "mimeType"?, "name"?}}``."""

AGENT_ERROR: Final = "agent_error"
"""The agent tried and failed."""
INFRA_ERROR: Final = "infra_error"
"""The agent could not run, or could not be reached."""
TIMEOUT: Final = "timeout"
"""The agent did not end in time."""


class State(enum.Enum):
    """How a turn ended; the values are those of A2A 0.3 and two of ours."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    REJECTED = "rejected"
    INPUT_REQUIRED = "input-required"
    AUTH_REQUIRED = "auth-required"
    TIMEOUT = "timeout"
    """No terminal state in time; the A2A task was cancelled."""
    UNREACHABLE = "unreachable"
    """The agent does not answer, or not as A2A says."""


@dataclass(frozen=True)
class Reply:
    """The end of one turn.

    ``error_type`` is None exactly when the state is ``completed`` or ``input-required``
    and the agent reported no error: whether ``input-required`` is a failure depends on the
    conversation (spec 7.2), so the caller decides.
    """

    state: State
    text: str
    """Text parts of the final status message, joined by newlines; see :mod:`.reply`."""
    parts: tuple[Part, ...]
    """Every part of the reply, in the form that task files use."""
    message_id: str
    context_id: str
    task_id: str | None = None
    """A2A task id; None when the agent answered with a message."""
    data: tuple[Mapping[str, Any], ...] = ()
    """Contents of the data parts."""
    tool_call_count: int | None = None
    structured_output: Any | None = None
    """The typed result, else the last JSON object of the text, else None."""
    error_type: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    raw: Mapping[str, Any] | None = None
    """The final A2A task or message as JSON, history included."""

    @property
    def completed(self) -> bool:
        """Whether the turn succeeded."""
        return self.state is State.COMPLETED
