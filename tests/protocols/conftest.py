from __future__ import annotations

import socket

import pytest

from servers.running import serving
from servers.sdk_agent import build


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["0.3", "1.0"])
def sample(request):
    """Base URL, executor and wire version of a sample agent of the SDK's own."""
    app, executor = build(request.param)
    with serving(app) as url:
        yield url, executor, request.param


@pytest.fixture
def free_url() -> str:
    """An address of this machine where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    return f"http://127.0.0.1:{port}"
