"""Messages between provider and broker: one JSON object and some descriptors each.

The sockets are of type SEQPACKET, so a message is read whole or not at all. A message
that is too long for one packet travels in a memory file beside it.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]

MAX_PACKET_BYTES = 64 * 1024
MAX_DESCRIPTORS = 240  # the kernel's SCM_MAX_FD is 253
_LONG = b"@"


def channel() -> tuple[socket.socket, socket.socket]:
    """Two connected ends; whoever holds one sees the other one close."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(
    sock: socket.socket, message: Mapping[str, object], descriptors: Sequence[int] = ()
) -> None:
    """Send one message. Raises OSError when the other end is gone."""
    data = json.dumps(message).encode()
    if len(data) <= MAX_PACKET_BYTES:
        _send(sock, data, descriptors)
        return
    long = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(long), "wb") as file:
            file.write(data)
        _send(sock, _LONG, (long, *descriptors))
    finally:
        os.close(long)


def reply(sock: socket.socket, message: Mapping[str, object]) -> None:
    """As :func:`send`, to somebody who may not wait for it any more."""
    with contextlib.suppress(OSError):
        send(sock, message)


def last_reply(sock: socket.socket, message: Mapping[str, object]) -> None:
    """As :func:`reply`, and nothing more is taken.

    A message that crosses it, a kill of what has just ended, would stay unread; and the
    kernel answers the close of such a socket with a reset that takes the reply along.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RD)
        while sock.recv(1, socket.MSG_DONTWAIT):
            pass
    reply(sock, message)


def _send(sock: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    rights = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
    sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors; ``None`` when the other end is gone."""
    room = socket.CMSG_SPACE((MAX_DESCRIPTORS + 1) * array.array("i").itemsize)
    try:
        data, ancillary, _, _ = sock.recvmsg(
            MAX_PACKET_BYTES, room, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionError:
        return None
    descriptors = array.array("i")
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(value[: len(value) - len(value) % 4])
    if not data:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    if data != _LONG:
        return json.loads(data), list(descriptors)
    with os.fdopen(descriptors[0], "rb") as file:
        file.seek(0)
        return json.loads(file.read()), list(descriptors[1:])
