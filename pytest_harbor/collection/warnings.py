"""What the plugin has to say about tasks, as pytest warnings."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from pytest_harbor.collection.names import shown


class PytestHarborWarning(pytest.PytestWarning):
    """Something about a task or dataset that deserves a look.

    Shown once in pytest's warnings summary, and filtered like any other warning
    (``-W ignore::pytest_harbor.collection.warnings.PytestHarborWarning``). One thing is
    different on purpose: with ``-W error`` it is shown and does *not* become an error. Tasks are
    data that people often did not write, and a project that turns warnings of its code into errors
    should not lose a dataset's items by it; ``--harbor-strict`` is the switch that makes
    warnings about tasks errors.
    """


def warn(config: pytest.Config, message: str, path: Path) -> None:
    """Show ``message`` at the place ``path``.

    Under pytest-xdist every worker collects the same tasks, so only the first speaks.
    """
    if getattr(config, "workerinput", {}).get("workerid", "gw0") == "gw0":
        _show(config, message, path)


def warn_of_item(item: pytest.Item, message: str) -> None:
    """Show what the run of an item warned of, while it runs."""
    _show(item.config, f"{item.name}: {message}", item.path, nodeid=item.nodeid)


def _show(
    config: pytest.Config, message: str, path: Path, *, nodeid: str | None = None
) -> None:
    place = shown(str(path))
    warning = PytestHarborWarning(shown(message))
    try:
        warnings.warn_explicit(warning, None, place, 1, registry={})
    except PytestHarborWarning:
        record = warnings.WarningMessage(warning, PytestHarborWarning, place, 1)
        config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": record,
                "when": "collect" if nodeid is None else "runtest",
                "nodeid": nodeid or "",
                "location": None,
            }
        )
