from __future__ import annotations

import pytest

from servers.running import many_servers


@pytest.fixture(scope="module")
def servers():
    with many_servers() as running:
        yield running
