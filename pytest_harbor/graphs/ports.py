"""Free ports of this machine for servers that start a moment later."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def reserve_port(address: str = LOOPBACK) -> int:
    """A TCP port that nobody else is given for about a minute.

    Between a look for a free port and the start of a server somebody else could take
    it. A port with a connection in TIME_WAIT is never chosen by the kernel for others,
    while a server that asks for it by number gets it (with SO_REUSEADDR, which servers set).
    """
    with socket.socket() as listener, socket.socket() as client:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, 0))
        listener.listen(1)
        port: int = listener.getsockname()[1]
        client.connect((address, port))
        accepted, _ = listener.accept()
        accepted.close()  # this side closes first, so it is the one that waits
        client.recv(1)
    return port
