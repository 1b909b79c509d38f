"""Rows of JUnit XML for the steps of a multi-step task, and suite properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_harbor.collection import private
from pytest_harbor.collection.options import JUNIT_STEPS
from pytest_harbor.results import junit

if TYPE_CHECKING:
    from pytest_harbor.collection.step_reports import StepReport
    from pytest_harbor.results.summary import Summary


def write(report: StepReport, config: pytest.Config) -> None:
    """Write a finished step as a test case beside its episode's.

    Called before the writer closes the episode's row. The step's time is taken off the episode's row, so that the sum is the time that passed.
    """
    log = private.junit_log(config)
    if log is None or not config.getini(JUNIT_STEPS):
        return
    step = report.harbor
    path, _, name = report.nodeid.rpartition("::")
    nodeid = f"{path}::{junit.step_name(name, step['name'])}"
    for row in _rows(nodeid, report, step):
        log.pytest_runtest_logreport(row)
    private.take_from_row(log, report, step["seconds"])


def _rows(
    nodeid: str, report: StepReport, step: dict[str, Any]
) -> list[pytest.TestReport]:
    """What pytest would have reported for a test of that outcome."""
    properties = junit.step_properties(step)
    path, line, _ = report.location
    outcome, message = step["outcome"], step["message"]
    # A failure before the call is what JUnit XML and pytest call an error.
    when = "setup" if outcome == "error" else "call"
    ended = pytest.TestReport(
        nodeid,
        report.location,
        {},
        "failed" if outcome == "error" else outcome,
        (path, line or 0, message) if outcome == "skipped" else message or None,
        when,  # type: ignore[arg-type]
        duration=step["seconds"],
        user_properties=properties,
    )
    closed = pytest.TestReport(
        nodeid,
        report.location,
        {},
        "passed",
        None,
        "teardown",
        duration=0.0,
        user_properties=properties,
    )
    return [ended, closed]


def write_suite(summary: Summary, config: pytest.Config) -> None:
    """Add the roll-up to the test suite's properties."""
    log = private.junit_log(config)
    if log is None:
        return
    for name, value in junit.suite_properties(summary):
        private.add_suite_property(log, name, value)
