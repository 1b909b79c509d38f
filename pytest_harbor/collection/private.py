"""The private names of pytest that we need, each guarded, all in one place.

When pytest changes one of them, the feature named beside it degrades and nothing
else breaks. ``tests/collection/test_private.py`` has a test for each.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


def leave_as_written(config: pytest.Config, package: str) -> None:
    """Keep pytest from rewriting the assertions of a plugin's package.

    pytest parses every module of a plugin that it has not cached, in whichever thread
    imports it. Ours are imported by two, and two that parse at once may end in
    "SystemError: AST constructor recursion depth mismatch" (CPython 3.11).
    """
    hook = getattr(config.pluginmanager, "rewrite_hook", None)
    marked = getattr(hook, "_must_rewrite", None)
    known = getattr(hook, "_marked_for_rewrite_cache", None)
    if isinstance(marked, set) and isinstance(known, dict):
        marked.discard(package)
        known.clear()


def junit_log(config: pytest.Config) -> Any | None:
    """The JUnit XML writer of this process, for step rows and suite properties.

    ``_pytest.junitxml.LogXML`` has no public name; pytest registers one object of it.
    """
    try:
        from _pytest.junitxml import LogXML
    except ImportError:
        return None
    plugins: Iterable[object] = config.pluginmanager.get_plugins()
    return next((plugin for plugin in plugins if isinstance(plugin, LogXML)), None)


def take_from_row(log: Any, report: pytest.TestReport, seconds: float) -> None:
    """Take time off an episode's JUnit row, which its steps' rows have already.

    Only where the writer counts a row's set-up (``junit_duration_report = total``).
    """
    if getattr(log, "report_duration", None) != "total":
        return
    try:
        row = log.node_reporter(report)
        # Nobody measured the item of a worker that died: not less than nothing.
        row.duration = max(0.0, row.duration - seconds)
    except AttributeError:
        return


def forget_reports(
    config: pytest.Config, reports: Collection[pytest.TestReport]
) -> None:
    """Take reports out of the terminal's counts; where there are none, do nothing.

    ``TerminalReporter.stats`` is what other plugins read, too; nothing promises it.
    """
    terminal = config.pluginmanager.getplugin("terminalreporter")
    stats: dict[str, list[object]] = getattr(terminal, "stats", {})
    gone = {id(report) for report in reports}
    for category in list(stats):
        stats[category][:] = [r for r in stats[category] if id(r) not in gone]
        if not stats[category]:
            del stats[category]


def add_suite_property(log: Any, name: str, value: str) -> None:
    """Add a property to the test suite; the public fixture works in no worker."""
    add = getattr(log, "add_global_property", None)
    if add is not None:
        add(name, value)


@contextmanager
def configured(config: pytest.Config) -> Iterator[None]:
    """Plugins configured as for a session, without one, as ``--markers`` has them.

    Where the names are gone, hooks of ``conftest.py`` files are called unconfigured.
    """
    getattr(config, "_do_configure", _nothing)()
    try:
        yield
    finally:
        getattr(config, "_ensure_unconfigure", _nothing)()


def _nothing() -> None:
    return


def fixture_info(function: pytest.Function) -> Any | None:
    """The resolved fixtures of a test function, to pass on to our own item.

    Without it ``pytest.Function`` works them out again, which is only slower.
    """
    return getattr(function, "_fixtureinfo", None)


def agent_is_ours(metafunc: pytest.Metafunc, name: str, module: str) -> bool:
    """True when fixture ``name`` leads to ours and nobody else parametrised it.

    Follows overriding fixtures as pytest does: one that requests the name it overrides
    keeps our parameters, one that does not replaces them.
    """
    taken: dict[str, Any] = getattr(metafunc, "_params_directness", {})
    if name in taken:
        return False
    definitions = getattr(metafunc, "_arg2fixturedefs", {}).get(name, ())
    for definition in reversed(definitions):
        if definition.params is not None:
            return False
        if getattr(definition.func, "__module__", "") == module:
            return True
        if name not in definition.argnames:
            return False
    return True


def skip_at_item(reason: str) -> BaseException:
    """A skip that is reported at the item's own place instead of in our code."""
    try:
        return pytest.skip.Exception(reason, _use_item_location=True)
    except TypeError:
        return pytest.skip.Exception(reason)


def name_place(shown: object, path: str, message: str) -> None:
    """Let a failure's one-line form name the task's file and begin with our message.

    Dashboards show that line alone, and drop most else.
    """
    crash = getattr(shown, "reprcrash", None)
    if crash is not None and hasattr(crash, "message"):
        crash.path, crash.lineno, crash.message = path, 1, message
