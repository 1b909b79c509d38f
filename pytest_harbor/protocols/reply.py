"""What came of one message to an agent (spec 3.3, 7.2). Pure."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pytest_harbor.protocols.excerpts import is_too_deep, shortened

Part: TypeAlias = Mapping[str, Any]
"""``{"kind": "text", "text"}``, ``{"kind": "data", "data"}`` or ``{"kind": "file",
"file": {"uri" | "bytes" (base64), "mimeType"?, "name"?}}``."""

AGENT_ERROR: Final = "agent_error"
"""The agent tried and failed."""
INFRA_ERROR: Final = "infra_error"
"""The agent could not run, or could not be reached."""
TIMEOUT: Final = "timeout"
"""The agent did not end in time."""

_MAX_SCANNED_CHARACTERS: Final = 200_000
"""Of a longer text only the end is searched for a JSON object (a hostile one costs 2 s)."""
_MAX_FAILED_STARTS: Final = 10_000
_MAX_TOLD: Final[Mapping[str, int]] = {
    "error_type": 100,
    "error_code": 100,
    "error_message": 10_000,
}
"""Characters of what an agent says of its failure: it goes into reports and records."""


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

    The ``error_*`` fields are None when the state is ``completed`` or ``input-required``:
    whether ``input-required`` is a failure depends on the conversation (spec 7.2), so the
    caller decides. In every other state ``error_type`` and ``error_message`` are set.
    """

    state: State
    text: str
    """Text parts of the final status message, joined by newlines. When it has none, the
    text of the task's artifacts: A2A tells agents to put their results there, and many
    built on its SDK end a task without a message."""
    parts: tuple[Part, ...]
    """The parts of that message (and of the artifacts, when their text counts), in the
    form that task files use."""
    message_id: str
    """Of the message that was sent, not of the agent's."""
    context_id: str
    task_id: str | None = None
    """A2A task id; None when the agent answered with a message."""
    data: tuple[Mapping[str, Any], ...] = ()
    """Contents of the data parts, the message's before the artifacts'."""
    tool_call_count: int | None = None
    structured_output: Any | None = None
    """The typed result, else the last JSON object of the text, else None."""
    error_type: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    raw: Mapping[str, Any] | None = None
    """The final A2A task or message as JSON of wire version 0.3, history included."""

    @property
    def completed(self) -> bool:
        """Whether the turn succeeded."""
        return self.state is State.COMPLETED


@dataclass(frozen=True)
class Seen:
    """A task or message of the agent as one look at it showed; parts in our form.

    ``state`` is None while the task is not at its end.
    """

    state: State | None
    task_id: str | None
    context_id: str
    message_parts: tuple[Part, ...] = ()
    artifact_parts: tuple[Part, ...] = ()
    stamp: str = ""
    """Tells two states of one task apart."""
    raw: Mapping[str, Any] | None = None


def conclude(
    seen: Seen | None,
    state: State,
    *,
    message_id: str,
    context_id: str,
    error: str | None = None,
    code: str | None = None,
) -> Reply:
    """The reply of a turn that ended in ``state``; ``error`` is our own word on why."""
    message_parts = seen.message_parts if seen else ()
    artifact_parts = seen.artifact_parts if seen else ()
    parts, text = message_parts, _text(message_parts)
    if not text:
        parts, text = (*message_parts, *artifact_parts), _text(artifact_parts)
    data = tuple(_data([*message_parts, *artifact_parts]))
    error_type, error_code, error_message = _error(state, data, text, error, code)
    return Reply(
        state=state,
        text=text,
        parts=parts,
        message_id=message_id,
        context_id=(seen.context_id if seen else "") or context_id,
        task_id=seen.task_id if seen else None,
        data=data,
        tool_call_count=_tool_calls(data),
        structured_output=_structured(data, text),
        error_type=error_type,
        error_code=error_code,
        error_message=error_message,
        raw=seen.raw if seen else None,
    )


def _text(parts: Iterable[Part]) -> str:
    return "\n".join(
        part["text"] for part in parts if part.get("kind") == "text" and part["text"]
    )


def _data(parts: Iterable[Part]) -> Iterator[Mapping[str, Any]]:
    for part in parts:
        if part.get("kind") == "data" and isinstance(part["data"], Mapping):
            yield part["data"]


def _tool_calls(data: Iterable[Mapping[str, Any]]) -> int | None:
    for fields in data:
        usage = fields.get("usage")
        for holder in (usage if isinstance(usage, Mapping) else {}, fields):
            count = holder.get("tool_call_count")
            if isinstance(count, (int, float)) and not isinstance(count, bool):
                return int(count)
    return None


def _structured(data: Iterable[Mapping[str, Any]], text: str) -> Any | None:
    for fields in data:
        if fields.get("structured_output") is not None:
            return fields["structured_output"]
    found = last_json_object(text)
    return None if is_too_deep(found) else found


def last_json_object(text: str) -> dict[str, Any] | None:
    """The last JSON object that stands in a text by itself, not inside another one."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        if isinstance(whole, dict):
            return whole
    decoder = json.JSONDecoder()
    text = text[-_MAX_SCANNED_CHARACTERS:]
    found = None
    position = text.find("{")
    failures = 0
    while position != -1 and failures < _MAX_FAILED_STARTS:
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            failures += 1
            end = position + 1
        else:
            found = value
        position = text.find("{", end)
    return found


def _error(
    state: State,
    data: Iterable[Mapping[str, Any]],
    text: str,
    error: str | None,
    code: str | None,
) -> tuple[str | None, str | None, str | None]:
    if state in (State.COMPLETED, State.INPUT_REQUIRED):
        return None, None, None
    if state is State.TIMEOUT:
        return TIMEOUT, code, error
    if state is State.UNREACHABLE:
        return INFRA_ERROR, code, error
    told: dict[str, str] = {}
    for fields in data:
        for key, limit in _MAX_TOLD.items():
            value = fields.get(key)
            if key not in told and value is not None and value != "":
                told[key] = shortened(str(value), limit)
    kind = told.get("error_type")
    return (
        kind if kind in (AGENT_ERROR, INFRA_ERROR) else AGENT_ERROR,
        told.get("error_code", code),
        told.get("error_message")
        or error
        or shortened(text, _MAX_TOLD["error_message"])
        or f"the task ended as {state.value}, without a word",
    )
