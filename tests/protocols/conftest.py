from __future__ import annotations

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
