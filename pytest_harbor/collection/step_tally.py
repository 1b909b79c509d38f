"""The steps of running items in the process that reports: counted live, settled late.

Steps are told while their episode may still be tried again, or their item run again by
pytest-rerunfailures. What was told of a try that does not count is taken out of the
terminal's counts, and its JUnit rows are never written: rows wait for their item's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import pytest

from pytest_harbor.collection import junit_rows, private, progress
from pytest_harbor.collection.step_reports import PROGRESS, StepReport

if TYPE_CHECKING:
    Key: TypeAlias = tuple[str, object]

_GOES_ON: Final = frozenset({"setup", "call"})
"""Phases that do not end an item. A crashed worker's item has one of a name of its own."""


class StepTally:
    """Meets every report of a run, and keeps the steps of items that go on."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._open: dict[Key, list[StepReport]] = {}

    def meet(self, report: pytest.TestReport) -> None:
        """Take a report in. Called before pytest's own plugins see the item's end."""
        key = (report.nodeid, getattr(report, "node", None))
        if isinstance(report, StepReport):
            if report.is_step:
                self._open.setdefault(key, []).append(report)
            elif str(report.when) == PROGRESS:
                progress.write(report, self._config)
            else:
                self._take_back(key)
        elif key in self._open:
            if str(report.outcome) == "rerun":
                self._take_back(key)
            elif report.when not in _GOES_ON:
                for step in self._open.pop(key):
                    junit_rows.write(step, self._config)

    def _take_back(self, key: Key) -> None:
        private.forget_reports(self._config, self._open.pop(key, ()))
