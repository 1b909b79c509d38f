from __future__ import annotations

import pytest
from scratch_project import Project

# pytester forgets what a run in this process imported; loaded here, the heavy
# modules are loaded once for all tests.
from pytest_harbor.collection import (  # noqa: F401
    bridge,
    folders,
    providers,
    running,
    terminal,
)
from pytest_harbor.episodes import episode, outcome  # noqa: F401
from pytest_harbor.sandboxes.local import provider  # noqa: F401
from pytest_harbor.tasks.folder import load, plan  # noqa: F401


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A scratch project whose root is the rootdir, with real tasks in ``datasets/``."""
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    # At the end of a run hypothesis's plugin imports all of hypothesis, every time anew.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    return Project(pytester)
