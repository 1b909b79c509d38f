"""A judge that is a deployed agent, asked over A2A (spec 8.2, 8.3)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pytest_harbor.errors import JudgeError
from pytest_harbor.graphs.turns import keep_trajectory, take_turn, turn_failure
from pytest_harbor.protocols.reply import Reply, State
from pytest_harbor.verification.judges.api import Judge

if TYPE_CHECKING:
    from pytest_harbor.graphs.instances import Instance
    from pytest_harbor.graphs.steps.api import StepRun
    from pytest_harbor.protocols.a2a import AgentConnection

_READABLE: Final = (State.COMPLETED, State.INPUT_REQUIRED)
"""Ends of a turn whose text is read; a question is no answer, and is told so."""


class AgentJudge(Judge):
    """Asks an agent, in one A2A context; what it did is kept after each answer."""

    def __init__(
        self,
        run: StepRun,
        connection: AgentConnection,
        instance: Instance | None,
        *,
        name: str,
        settings: Mapping[str, Any],
        prefix: str,
    ) -> None:
        self._run = run
        self._connection = connection
        self._instance = instance
        self._name = name
        self._settings = settings
        self._prefix = prefix
        self._context_id = uuid.uuid4().hex
        self._open_task: str | None = None
        self.configured: frozenset[str] | None = None
        """Keys that the agent took, once it was configured."""
        self.trajectory_url: str | None = None
        """Where what it did for its last answer is stored."""

    async def ask(
        self, text: str, schema: Mapping[str, Any], *, timeout_seconds: float
    ) -> str | Mapping[str, Any]:
        if self.configured is None:
            output_format = {"type": "json_schema", "schema": dict(schema)}
            values = {**self._settings, "output_format": output_format}
            self.configured = await self._connection.configure(values)
        reply = await take_turn(
            self._connection,
            text,
            instance=self._instance,
            context_id=self._context_id,
            task_id=self._open_task,
            timeout_seconds=timeout_seconds,
        )
        self.trajectory_url = await keep_trajectory(
            self._run, self._connection, reply, self._prefix
        )
        if reply.state not in _READABLE:
            failure = await turn_failure(self._run, self._name, self._instance, reply)
            raise JudgeError(f"no grades: {failure}")
        is_open = reply.state is State.INPUT_REQUIRED
        self._open_task = reply.task_id if is_open else None
        return _answer(reply)


def _answer(reply: Reply) -> str | Mapping[str, Any]:
    """The typed result, else the text; an object in its midst is read with more care."""
    for fields in reply.data:
        structured = fields.get("structured_output")
        if isinstance(structured, Mapping):
            return structured
    return reply.text
