"""Reports of our own kind: finished steps, steps taken back, and lines of progress.

pytest's built-in subtests double times and failures in JUnit, swallow time limits and
count twice for ``--maxfail``. A :class:`StepReport` looks like a passed phase without
duration to every other plugin; only our hooks read what it carries. It travels from a worker
to the controller like any report.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pytest

if TYPE_CHECKING:
    from pytest_harbor.verdicts import StepVerdict

STEP: Final = "step"
PROGRESS: Final = "progress"
RETRACTED: Final = "retracted"
WHY_WIDTH: Final = 120
_TYPE: Final = "PytestHarborStep"

Status: TypeAlias = "tuple[str, str, str | tuple[str, dict[str, bool]]]"


class StepReport(pytest.TestReport):
    """A step that ended (``when`` is ``step``) or a line to show (``progress``).

    ``harbor`` holds plain data. Of a step: ``name``, ``index``, ``outcome`` (passed, failed, error or
    skipped), ``message``, ``reward``, ``seconds``. Of progress: ``line``. A ``retracted`` one says that
    the steps reported of this item so far do not count: its episode is tried again.
    """

    harbor: dict[str, Any]

    @property
    def is_step(self) -> bool:
        """True for a step that ended."""
        return str(self.when) == STEP

    @classmethod
    def of(cls, item: pytest.Item, when: str, harbor: dict[str, Any]) -> StepReport:
        """A report about ``item``."""
        return cls(
            item.nodeid,
            item.location,
            {},
            "passed",
            None,
            when,  # type: ignore[arg-type]  # a phase of our own is the point
            duration=0.0,
            harbor=harbor,
        )


def emit(item: pytest.Item, when: str, harbor: dict[str, Any]) -> None:
    """Send a report on its way, past the capturing of the running test."""
    report = StepReport.of(item, when, harbor)
    capture = item.config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        item.ihook.pytest_runtest_logreport(report=report)
        return
    with capture.global_and_fixture_disabled():
        item.ihook.pytest_runtest_logreport(report=report)


def step_data(step: StepVerdict) -> dict[str, Any]:
    """What a report of a step carries."""
    from pytest_harbor.results.junit import clean

    return {
        "name": step.name,
        "index": step.index,
        "outcome": step.outcome,
        "message": clean(step.message),
        "reward": step.reward,
        "seconds": step.seconds,
    }


def to_serializable(report: object) -> dict[str, Any] | None:
    """The plain data of a report of ours; ``None`` for any other."""
    if not isinstance(report, StepReport):
        return None
    return {
        "$report_type": _TYPE,
        "nodeid": report.nodeid,
        "location": list(report.location),
        "when": report.when,
        "harbor": report.harbor,
    }


def from_serializable(data: dict[str, Any]) -> StepReport | None:
    """A report of ours from its plain data; ``None`` for any other."""
    if data.get("$report_type") != _TYPE:
        return None
    path, line, name = data["location"]
    return StepReport(
        data["nodeid"],
        (path, line, name),
        {},
        "passed",
        None,
        data["when"],
        duration=0.0,
        harbor=data["harbor"],
    )


def status(report: StepReport, config: pytest.Config) -> Status:
    """How a step is counted and shown: like pytest's own subtests.

    An error counts as a failed step; the item's own outcome tells the two apart.
    """
    if not report.is_step:
        return "", "", ""
    step = report.harbor
    outcome = step["outcome"]
    counted = "failed" if outcome == "error" else outcome
    if config.get_verbosity() <= 0 and counted != "failed":
        return "", "", ""
    reward = "" if step["reward"] is None else f" reward={step['reward']:.2f}"
    colour = {"passed": "green", "failed": "red", "skipped": "yellow"}[counted]
    word = f"SUB{outcome.upper()}[{step['name']}]{reward}{_why(step)}"
    return f"subtests {counted}", "u", (word, {colour: True})


def _why(step: dict[str, Any]) -> str:
    """The reason of a step that did not pass, on the line of its name."""
    lines = step["message"].splitlines()
    if step["outcome"] == "passed" or not lines:
        return ""
    return f" ({textwrap.shorten(lines[0], WHY_WIDTH, placeholder=' ...')})"
