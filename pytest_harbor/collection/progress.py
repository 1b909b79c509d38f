"""Lines of progress under ``-v``: what each running episode is doing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from pytest_harbor.collection.step_reports import PROGRESS, StepReport, emit

if TYPE_CHECKING:
    from pytest_harbor.events import Event

PHASES: Final = frozenset({"agent", "verify"})


def line(event: Event, *, has_steps: bool = False) -> str | None:
    """The line for an event, or ``None`` for one that is not worth it.

    With ``has_steps`` a report of its own tells how each turn ended, and turns are
    worth a line from their preparation on, which may wait for a health check.
    """
    # The turn of a single-step task has the task's name, which the line has already.
    is_single = event.step is None or event.episode.startswith(f"{event.step}[")
    where = "" if is_single else f"{event.step}: "
    data = event.data
    if event.kind in ("sandbox_progress", "sandbox_started"):
        return event.message or f"sandbox {data.get('provider', '')} ready"
    if event.kind == "phase_started":
        shown = PHASES | {"prepare"} if has_steps else PHASES
        return f"{where}{event.phase}" if event.phase in shown else None
    if event.kind == "turn_ended" and has_steps:
        return None
    if event.kind == "turn_ended" and data.get("reward") is not None:
        return f"{where}reward {data['reward']:.2f}"
    if event.kind == "attempt_failed":
        again = "trying again" if data.get("will_retry") else "giving up"
        reason = str(event.message or data.get("failure_kind") or "failed")
        return f"{again}: {reason.splitlines()[0]}"
    return None


def show(item: pytest.Item, event: Event, *, has_steps: bool = False) -> None:
    """Report an event of a running episode, where somebody asked to see them."""
    if item.config.get_verbosity() <= 0:
        return
    text = line(event, has_steps=has_steps)
    if text:
        emit(item, PROGRESS, {"line": text})


def write(report: StepReport, config: pytest.Config) -> None:
    """Write a line of progress; in the controller, and only with a terminal plugin."""
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is None:
        return
    name = report.nodeid.rpartition("::")[2]
    # As the reporter's own lines, which begin with the line break: no blank ones between.
    terminal.write_ensure_prefix(f"  {name}: {report.harbor['line']}")
