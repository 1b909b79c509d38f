from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from episode_samples import make_result

from pytest_harbor.results.records import Origin, Records
from pytest_harbor.verdicts import Verdict


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., None]:
    """Write an episode's start and end into the record files of ``tmp_path``."""
    records = Records(tmp_path)

    def write(node_id: str, outcome: Any = "passed", **changes: Any) -> None:
        result = make_result(**changes)
        origin = Origin(node_id, min_reward=1.0)
        records.started(
            origin=origin,
            task_id=result.task_id,
            agent=result.agent,
            attempt=result.attempt,
            sandbox="local",
        )
        records.finished(result, Verdict(outcome, "message"), origin=origin)

    return write
