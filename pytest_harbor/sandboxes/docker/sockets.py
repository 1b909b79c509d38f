"""Connections to a daemon's Unix socket that close what they opened.

docker-py's own leave their socket open when nobody listens. In a session that makes warnings
errors, as many do, a daemon that goes away would fail tests that have nothing to do with it.
"""

from __future__ import annotations

import socket
from typing import Any, TypeVar

import docker
from docker.transport.unixconn import (
    UnixHTTPAdapter,
    UnixHTTPConnection,
    UnixHTTPConnectionPool,
)

C = TypeVar("C", bound=docker.APIClient)

_DOCKER = "http+docker://"


def mended(client: C) -> C:
    """The client, with connections that close where its daemon is on a Unix socket."""
    adapter = client.adapters.get(_DOCKER)
    if isinstance(adapter, UnixHTTPAdapter):
        own = _Adapter(f"http+unix://{adapter.socket_path}", adapter.timeout)
        client.mount(_DOCKER, own)
    return client


class _Connection(UnixHTTPConnection):
    def connect(self) -> None:
        opened = socket.socket(socket.AF_UNIX)
        try:
            opened.settimeout(self.timeout)
            opened.connect(self.unix_socket)
        except BaseException:
            opened.close()
            raise
        self.sock = opened


class _Pool(UnixHTTPConnectionPool):
    def _new_conn(self) -> Any:
        timeout: Any = self.timeout
        return _Connection(self.base_url, self.socket_path, timeout)


class _Adapter(UnixHTTPAdapter):
    def get_connection(self, url: Any, proxies: Any = None) -> _Pool:  # noqa: ARG002
        with self.pools.lock:
            pool: _Pool | None = self.pools.get(url)
            if pool is None:
                pool = _Pool(
                    url, self.socket_path, self.timeout, maxsize=self.max_pool_size
                )
                self.pools[url] = pool
        return pool
