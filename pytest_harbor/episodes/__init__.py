"""The task-folder engine: runs an ``EpisodePlan`` in a sandbox, without pytest.

``run`` resolves on first use, since it loads anyio and pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_harbor.episodes.episode import run

__all__ = ["run"]


def __getattr__(name: str) -> object:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_harbor.episodes.episode import run

    return run
