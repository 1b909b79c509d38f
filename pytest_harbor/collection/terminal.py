"""What the controller (or the only process) tells and does for the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_harbor.collection import junit_rows
from pytest_harbor.errors import HarborError
from pytest_harbor.results import records, summary
from pytest_harbor.results.run_folder import relative_to
from pytest_harbor.sandboxes.choose import provider_name

if TYPE_CHECKING:
    from pytest_harbor.collection.session import HarborSession
    from pytest_harbor.results.summary import Summary


def header(session: HarborSession) -> list[str]:
    """Lines after the collection: run, agents, sandboxes, where results go.

    Sandboxes are tried out for it (``probe``), but not to list tasks only.
    """
    settings = session.settings
    agents = f", agent {', '.join(settings.agents)}" if session.folders_seen else ""
    model = f" ({settings.model})" if settings.model else ""
    lines = [f"harbor: run {session.run_id}{agents}{model}"]
    if session.config.getoption("collectonly"):
        return lines
    for name in sorted(provider_name(settings.sandbox, need) for need in session.needs):
        try:
            found = session.providers.probe(name)
        except HarborError as error:
            lines.append(f"harbor: sandbox {name}: {error.message}")
            continue
        except Exception as error:  # noqa: BLE001 - its items tell the whole of it
            what = f"{type(error).__name__}: {error}"
            lines.append(f"harbor: sandbox {name} cannot be tried out: {what}")
            continue
        if found.available:
            mode = f" ({found.mode})" if found.mode else ""
            lines.append(f"harbor: sandbox {name}{mode}")
            lines += [f"harbor: {note}" for note in found.notes]
        else:
            reason = found.reason.splitlines()[0] if found.reason else "no reason given"
            lines.append(f"harbor: sandbox {name} is not available: {reason}")
    place = relative_to(session.run_folder.place, session.config.rootpath)
    return [*lines, f"harbor: results {place}"]


def meet_tasks(session: HarborSession) -> None:
    """In the controller of pytest-xdist, when the first worker has collected tasks."""
    session.tasks_seen = True
    session.check_names()
    session.interrupts.arm()
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None and session.config.get_verbosity() >= 0:
        terminal.ensure_newline()
        for line in header(session):
            terminal.write_line(line)


def sweep_after_crash(session: HarborSession) -> None:
    """Remove what a worker that died left up, in the sandboxes this run uses."""
    rows = records.read(session.run_folder.place / records.STARTED)
    names = {str(row.get("sandbox")) for row in rows}
    known = {"local", "docker", *session.providers.registered}
    session.providers.sweep(sorted(names & known))


def roll_up(session: HarborSession) -> Summary | None:
    """Write ``summary.json``; again when more was recorded."""
    try:
        session.summary = summary.write(session.run_folder.place)
    except OSError as error:
        session.trouble.append(f"summary.json cannot be written: {error}")
        return None
    return session.summary


def finish(session: HarborSession) -> None:
    """Write ``summary.json`` and the suite's JUnit properties."""
    if found := roll_up(session):
        junit_rows.write_suite(found, session.config)


def write_summary(session: HarborSession, terminal: pytest.TerminalReporter) -> None:
    """The roll-up, as a section of pytest's summary."""
    terminal.section("harbor")
    if session.summary is not None:
        place = relative_to(session.run_folder.place, session.config.rootpath)
        for line in summary.lines(session.summary, logs=place):
            terminal.write_line(line)
    for line in session.trouble:
        terminal.write_line(f"trouble: {line}", yellow=True)
