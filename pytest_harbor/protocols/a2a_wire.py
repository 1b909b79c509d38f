"""The official A2A SDK, put to our use: both wire versions, one way to look at a task.

Everything that the SDK may raise for an untrusted answer comes out as a ProtocolError.
This module imports a2a and httpx; import it inside functions.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import anyio
import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.client.client import Client, ClientCallContext
from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as v0_3
from a2a.types import a2a_pb2 as pb
from a2a.utils.constants import TransportProtocol
from a2a.utils.errors import A2AError
from google.protobuf.json_format import ParseDict, ParseError

from pytest_harbor.errors import HarborError, ProtocolError, ServerTimeout
from pytest_harbor.protocols import http
from pytest_harbor.protocols.addresses import shown
from pytest_harbor.protocols.agent_card import Wire
from pytest_harbor.protocols.excerpts import excerpt
from pytest_harbor.protocols.reply import Part, Seen, State

T = TypeVar("T")

_ENDED: Final = {
    pb.TaskState.TASK_STATE_COMPLETED: State.COMPLETED,
    pb.TaskState.TASK_STATE_FAILED: State.FAILED,
    pb.TaskState.TASK_STATE_CANCELED: State.CANCELED,
    pb.TaskState.TASK_STATE_REJECTED: State.REJECTED,
    pb.TaskState.TASK_STATE_INPUT_REQUIRED: State.INPUT_REQUIRED,
    pb.TaskState.TASK_STATE_AUTH_REQUIRED: State.AUTH_REQUIRED,
}
_SHAPE_ERRORS: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What the SDK's own readers raise for JSON of another shape."""
_NEWER_PART: Final = ("text", "data", "raw", "url")


class WireClient:
    """The SDK's client for one interface of an agent."""

    def __init__(
        self,
        url: str,
        wire: Wire,
        *,
        fallback: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self._wire: Wire = wire
        self._fallback = fallback
        self._http = http.new_client(url, headers=headers)
        self._http.event_hooks["response"].append(_check_answer)
        self._client = self._new_client()

    def _new_client(self) -> Client:
        interface = pb.AgentInterface(
            url=self.url,
            protocol_binding=TransportProtocol.JSONRPC,
            protocol_version=self._wire,
        )
        config = ClientConfig(streaming=False, httpx_client=self._http)
        return ClientFactory(config).create(
            pb.AgentCard(supported_interfaces=[interface])
        )

    def fall_back(self) -> bool:
        """Send to the fallback URL from now on; false when that is where it goes."""
        if self.url == self._fallback:
            return False
        self.url = self._fallback
        self._client = self._new_client()
        return True

    async def send(
        self,
        parts: Sequence[pb.Part],
        *,
        message_id: str,
        context_id: str,
        task_id: str | None,
        metadata: Mapping[str, Any] | None,
        timeout_seconds: float,
    ) -> Seen:
        """Send a message, non-blocking; what the agent made of it at once."""
        message = pb.Message(
            role=pb.Role.ROLE_USER,
            message_id=message_id,
            context_id=context_id,
            task_id=task_id or "",
            parts=parts,
            metadata=dict(metadata) if metadata else None,
        )
        request = pb.SendMessageRequest(message=message)
        request.configuration.return_immediately = True

        async def answer() -> Seen:
            events = self._client.send_message(
                request, context=ClientCallContext(timeout=timeout_seconds)
            )
            async for event in events:
                if event.HasField("message"):
                    return _seen_message(event.message)
                return _seen_task(event.task)
            raise ValueError("neither a task nor a message")

        return await self._in_our_words("message/send", answer(), timeout_seconds)

    async def look(self, task_id: str, *, timeout_seconds: float) -> Seen:
        """The state of a task now."""

        async def answer() -> Seen:
            return _seen_task(
                await self._client.get_task(
                    pb.GetTaskRequest(id=task_id),
                    context=ClientCallContext(timeout=timeout_seconds),
                )
            )

        return await self._in_our_words("tasks/get", answer(), timeout_seconds)

    async def cancel(self, task_id: str, *, timeout_seconds: float) -> None:
        """Ask for a task's end."""
        await self._in_our_words(
            "tasks/cancel",
            self._client.cancel_task(
                pb.CancelTaskRequest(id=task_id),
                context=ClientCallContext(timeout=timeout_seconds),
            ),
            timeout_seconds,
        )

    async def aclose(self) -> None:
        """Close its sockets."""
        await self._http.aclose()

    async def _in_our_words(
        self, what: str, answer: Awaitable[T], timeout_seconds: float
    ) -> T:
        try:
            with anyio.fail_after(timeout_seconds):
                return await answer
        except HarborError:
            raise
        except TimeoutError as error:
            raise ServerTimeout(
                f"{what}: {shown(self.url)} did not answer in {timeout_seconds:g} s",
                url=self.url,
            ) from error
        except (A2AError, ParseError, *_SHAPE_ERRORS) as error:
            raise ProtocolError(
                f"{what}: {shown(self.url)} answered neither a task nor a message: "
                f"{excerpt(str(error))}",
                url=self.url,
            ) from error


async def _check_answer(response: httpx.Response) -> None:
    """Raise for an error, a wrong id or no JSON-RPC before the SDK guesses at it."""
    await response.aread()
    asked = json.loads(response.request.content)
    http.rpc_result(response, method=asked["method"], request_id=asked["id"])


def core_parts(parts: str | Iterable[Part]) -> list[pb.Part]:
    """The SDK's form of parts that are written in either wire's JSON form.

    Raises:
        ValueError: there is none, or one has no known form; with its position.
    """
    if isinstance(parts, str):
        return [pb.Part(text=parts)]
    found = [_core_part(part, number) for number, part in enumerate(parts, start=1)]
    if not found:
        raise ValueError("a message needs at least one part")
    return found


def _core_part(part: Part, number: int) -> pb.Part:
    fields = dict(part)
    if "kind" not in fields and "file" in fields:
        fields["kind"] = "file"
    try:
        if "kind" in fields:
            return conversions.to_core_part(v0_3.Part.model_validate(fields))
        if not any(key in fields for key in _NEWER_PART):
            raise ValueError("it has no kind")
        return ParseDict(fields, pb.Part())
    except (ParseError, *_SHAPE_ERRORS) as error:
        raise ValueError(
            f"part {number} is no text, data or file part: {excerpt(str(error))}"
        ) from error


def _our_parts(parts: Iterable[pb.Part]) -> tuple[Part, ...]:
    return tuple(
        _plain(conversions.to_compat_part(part))
        for part in parts
        if part.WhichOneof("content")
    )


def _plain(model: v0_3.Part | v0_3.Message | v0_3.Task) -> dict[str, Any]:
    dumped = model.model_dump(by_alias=True, exclude_none=True, mode="json")
    return cast("dict[str, Any]", _with_integers(dumped))


def _with_integers(value: Any) -> Any:
    """JSON whose whole numbers are integers again: protobuf keeps floats alone."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _with_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    return value


def _seen_message(message: pb.Message) -> Seen:
    """A message instead of a task is a completed turn (spec 12)."""
    return Seen(
        state=State.COMPLETED,
        task_id=message.task_id or None,
        context_id=message.context_id,
        message_parts=_our_parts(message.parts),
        raw=_plain(conversions.to_compat_message(message)),
    )


def _seen_task(task: pb.Task) -> Seen:
    if not task.id:
        raise ValueError("the task has no id")
    return Seen(
        state=_ENDED.get(task.status.state),
        task_id=task.id,
        context_id=task.context_id,
        message_parts=_our_parts(task.status.message.parts),
        artifact_parts=tuple(
            part for artifact in task.artifacts for part in _our_parts(artifact.parts)
        ),
        stamp=task.status.SerializeToString(deterministic=True).hex(),
        raw=_plain(conversions.to_compat_task(task)),
    )
