"""The conversation store: every turn between an agent and whoever prompts it (spec 7.2, 7.3).

A turn is written as it ends, under ``runs/<run>/conversations/<id>/turn_01.json``, so that a
run that is killed keeps what was said; ``conversation.json`` follows when it is closed.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast
from urllib.parse import quote

from pytest_harbor.errors import StepError

if TYPE_CHECKING:
    from pytest_harbor.events import Json
    from pytest_harbor.graphs.objects import ObjectStore
    from pytest_harbor.protocols.reply import Part, Reply
    from pytest_harbor.sandboxes.output import Masker

EndReason: TypeAlias = str
ANSWERED: Final = "answered"
"""The one prompt of the step was answered."""
TURN_LIMIT: Final = "turn_limit"
AGENT_FAILED: Final = "agent_failed"
AGENT_SILENT: Final = "agent_silent"
"""The agent's reply had nothing in it that could be sent to the user."""
USER_DONE: Final = "user_done"
USER_SILENT: Final = "user_silent"
USER_ENDED: Final = "user_"
"""Followed by the state of a user's turn that did not complete: ``user_timeout``."""

_MAX_KEY_CHARACTERS: Final = 100


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    turn: int
    role: Literal["user", "agent"]
    """``user`` is whoever prompts, ``agent`` the one that is prompted."""
    agent_name: str
    parts: list[Json]
    message_id: str | None
    """``None`` where its sender gave it none."""
    at: float
    """When it was sent or, of an answer, read; since the epoch."""


@dataclass
class Conversation:
    """The record of a conversation."""

    conversation_id: str
    task_instance_id: str
    """The run."""
    source_agent_name: str
    """Who prompts: the user agent's name, a person's endpoint, or the task."""
    target_agent_name: str
    messages: list[Message] = field(default_factory=list)
    a2a_tasks: list[Json] = field(default_factory=list)
    """The final A2A tasks of both sides, as their servers gave them."""
    status: Literal["active", "closed"] = "active"
    end_reason: EndReason | None = None


class OpenConversation:
    """A conversation that goes on; it writes what happens to the object store."""

    def __init__(
        self,
        store: ObjectStore,
        masker: Masker,
        *,
        run_id: str,
        source: str,
        target: str,
    ) -> None:
        self.record = Conversation(uuid.uuid4().hex, run_id, source, target)
        self._store = store
        self._masker = masker
        self._prefix = f"runs/{run_id}/conversations/{self.record.conversation_id}"
        self._turn = 0

    async def prompted(
        self, parts: Sequence[Part], reply: Reply, *, asked_at: float
    ) -> None:
        """Keep one turn of the agent: what it was asked, and how it answered.

        ``asked_at`` is the time since the epoch at which the prompt was sent.

        Raises:
            StepError: it cannot be written.
        """
        self._turn += 1
        name = self.record.source_agent_name
        asked = self._message("user", name, parts, reply.message_id, asked_at)
        name = self.record.target_agent_name
        answered = self._message("agent", name, reply.parts, _own_id(reply))
        self._task(reply)
        turn = {
            "turn": self._turn,
            "state": reply.state.value,
            "prompt": asdict(asked),
            "reply": asdict(answered),
            "a2a_task": reply.raw,
            "error": reply.error_message,
        }
        await self._put(f"turn_{self._turn:02}.json", turn)

    def user_answered(self, reply: Reply, *, goes_on: bool) -> None:
        """Note a turn of the user.

        What it said is the next turn's prompt when the conversation goes on; else it is kept
        here, for it is sent to nobody.
        """
        self._task(reply)
        if not goes_on:
            name = self.record.source_agent_name
            self._message("user", name, reply.parts, _own_id(reply))

    async def close(self, reason: EndReason) -> None:
        """Say why it ended, and write all of it. Raises as :meth:`prompted`."""
        self.record.status = "closed"
        self.record.end_reason = reason
        await self._put("conversation.json", asdict(self.record))

    def _task(self, reply: Reply) -> None:
        if reply.raw is not None:
            self.record.a2a_tasks.append(cast("Json", dict(reply.raw)))

    def _message(
        self,
        role: Literal["user", "agent"],
        name: str,
        parts: Sequence[Part],
        message_id: str | None,
        at: float | None = None,
    ) -> Message:
        plain = cast("list[Json]", [dict(part) for part in parts])
        at = time.time() if at is None else at
        message = Message(self._turn, role, name, plain, message_id, at)
        self.record.messages.append(message)
        return message

    async def _put(self, name: str, value: Mapping[str, object]) -> None:
        await put_json(
            self._store, self._masker, f"{self._prefix}/{name}", cast("Json", value)
        )


def _own_id(reply: Reply) -> str | None:
    """The ID of an answer; ``reply.message_id`` is that of what it answers."""
    raw = reply.raw or {}
    said: Mapping[str, Any] = (raw.get("status") or {}).get("message") or {}
    if raw.get("kind") == "message":
        said = raw
    found = said.get("messageId")
    return found if isinstance(found, str) else None


async def put_json(store: ObjectStore, masker: Masker, key: str, value: Json) -> str:
    """Store plain data, secrets masked; returns its URL.

    Raises:
        StepError: it cannot be stored.
    """
    try:
        return await store.put_json(key, masker.data(value))
    except (OSError, ValueError, RecursionError) as error:
        raise StepError(
            f"cannot write {key} to the object store: {type(error).__name__}: {error}"
        ) from error


def key_part(name: str) -> str:
    """A name of a task file as one part of a key, whatever is in it."""
    safe = quote(name, safe="", errors="replace")
    if len(safe) > _MAX_KEY_CHARACTERS:
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
        safe = f"{safe[:_MAX_KEY_CHARACTERS]}-{digest}"
    return safe.replace(".", "%2E", 1) if safe.startswith(".") else safe
