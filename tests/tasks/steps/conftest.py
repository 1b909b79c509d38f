"""A bundle that the table tests share: each writes its own task file into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from step_bundles import write_bundle


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library's bundle, as it is; only for tasks without files of their own."""
    return write_bundle(tmp_path_factory.mktemp("desk"))
