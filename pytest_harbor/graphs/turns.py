"""One turn of a deployed agent, as the steps see it: sent, waited for, kept, judged failed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from pytest_harbor.errors import (
    AGENT_COULD_NOT_RUN,
    AGENT_RUN_ERROR,
    AGENT_TIMEOUT,
    SERVER_UNREACHABLE,
    HarborError,
    ProtocolError,
    ServerNotReady,
    StepError,
)
from pytest_harbor.graphs.conversations import put_json
from pytest_harbor.protocols.reply import (
    AGENT_ERROR,
    INFRA_ERROR,
    Part,
    Reply,
    State,
    conclude,
)

if TYPE_CHECKING:
    from pytest_harbor.events import Json
    from pytest_harbor.graphs.instances import Instance
    from pytest_harbor.graphs.steps.api import StepRun
    from pytest_harbor.protocols.a2a import AgentConnection

CONNECT_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.5
_LAST_WORDS_SECONDS: Final = 2.0
"""What an answer that is on its way gets after the agent's process was seen dead."""
_TEXT_SHOWN: Final = 2000


async def connect(
    url: str, instance: Instance | None = None, *, same_origin: bool = True
) -> AgentConnection:
    """A connection to a deployed agent, or to an endpoint that a task file names.

    Raises:
        ServerNotReady: its process is dead, with the log's tail.
        ProtocolError: it gives no card.
    """
    from pytest_harbor.protocols import a2a

    if instance is not None and (death := instance.death):
        raise ServerNotReady(f"{instance.what} {death}")
    token = instance.token if instance is not None else None
    return await a2a.connect(
        url,
        timeout_seconds=CONNECT_SECONDS,
        headers={"authorization": f"Bearer {token}"} if token else None,
        same_origin=same_origin,
    )


async def take_turn(
    connection: AgentConnection,
    parts: str | Sequence[Part],
    *,
    instance: Instance | None,
    context_id: str,
    task_id: str | None = None,
    timeout_seconds: float,
    poll_seconds: float = 2.0,
) -> Reply:
    """Send a message and wait for the end of the turn; how it ended is in the reply.

    An agent whose process has died is not waited for.
    """
    message_id = uuid.uuid4().hex
    reply: Reply | None = None
    death: str | None = None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            nonlocal death
            # Nothing tells of a death: an instance is asked for it.
            while instance is not None and instance.death is None:  # noqa: ASYNC110
                await anyio.sleep(_LOOK_SECONDS)
            if instance is not None:
                await anyio.sleep(_LAST_WORDS_SECONDS)
                death = f"{instance.what} {instance.death}"
                group.cancel_scope.cancel()

        group.start_soon(watch)
        reply = await connection.send(
            parts,
            context_id=context_id,
            message_id=message_id,
            task_id=task_id,
            timeout_seconds=timeout_seconds,
            poll_seconds=poll_seconds,
        )
        group.cancel_scope.cancel()
    if reply is not None:
        return reply
    return conclude(
        None,
        State.UNREACHABLE,
        message_id=message_id,
        context_id=context_id,
        error=death,
    )


async def keep_trajectory(
    run: StepRun, connection: AgentConnection, reply: Reply, prefix: str
) -> str | None:
    """Store what the agent did in a turn; returns its URL.

    ``None`` when the agent offers no trajectory or it cannot be fetched, which is a warning.

    Raises:
        StepError: it cannot be stored.
    """
    if reply.task_id is None or reply.state is State.UNREACHABLE:
        return None
    try:
        trajectory = await connection.trajectory(reply.task_id)
    except ProtocolError as error:
        run.warn(run.masker.text(f"no trajectory of {connection.card.name}: {error}"))
        return None
    if trajectory is None:
        return None
    key = f"{prefix}trajectory-{reply.message_id}.json"
    return await put_json(run.store, run.masker, key, cast("Json", trajectory))


async def turn_failure(
    run: StepRun, agent_name: str, instance: Instance | None, reply: Reply
) -> HarborError:
    """The error of a turn that failed: type, code, A2A task, and the agent's own words.

    Where it said nothing, the tail of its log.
    """
    facts = [reply.error_type or AGENT_ERROR]
    if reply.error_code:
        facts.append(f"code {reply.error_code}")
    if reply.task_id:
        facts.append(f"A2A task {reply.task_id}")
    message = f"agent '{agent_name}' {_how(reply)} ({', '.join(facts)})"
    said = reply.text or reply.error_message or ""
    if reply.error_message and reply.error_message != reply.text:
        message += f": {reply.error_message}"
        said = reply.text
    elif said:
        message += f": {said[:_TEXT_SHOWN]}"
        said = ""
    if said:
        message += f"\nit said: {said[:_TEXT_SHOWN]}"
    message += await _tail(instance, reply)
    return StepError(run.masker.text(message), kind=_kind(reply))


async def _tail(instance: Instance | None, reply: Reply) -> str:
    if instance is None or (reply.text and reply.state is not State.UNREACHABLE):
        return ""
    if reply.state is State.UNREACHABLE:
        await _last_look(instance)
    if death := instance.death:
        said = reply.error_message or ""
        return "" if death in said else f"\n{instance.what} {death}"
    try:
        tail = await instance.log_tail()
    except HarborError:
        return ""
    return f"\nits log ends:\n{tail}" if tail else ""


async def _last_look(instance: Instance) -> None:
    """Wait for word of an instance's death: it comes a moment after the connection broke."""
    with anyio.move_on_after(_LOOK_SECONDS):
        while instance.death is None:  # noqa: ASYNC110 - nothing tells of a death
            await anyio.sleep(_LOOK_SECONDS / 20)


def _how(reply: Reply) -> str:
    return {
        State.FAILED: "failed",
        State.CANCELED: "cancelled its task",
        State.REJECTED: "rejected the prompt",
        State.INPUT_REQUIRED: "asks for input, and nobody answers",
        State.AUTH_REQUIRED: "asks for authentication",
        State.TIMEOUT: "did not end its turn in time",
        State.UNREACHABLE: "cannot be reached",
    }.get(reply.state, "failed")


def _kind(reply: Reply) -> str:
    if reply.state is State.TIMEOUT:
        return AGENT_TIMEOUT
    if reply.state is State.UNREACHABLE:
        return SERVER_UNREACHABLE
    if reply.error_type == INFRA_ERROR:
        return AGENT_COULD_NOT_RUN
    return AGENT_RUN_ERROR


def text_parts(text: str) -> list[dict[str, Any]]:
    """A text as the parts of a message."""
    return [{"kind": "text", "text": text}]
