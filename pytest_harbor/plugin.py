"""The pytest entry point: options, ini keys, markers, hook wiring. Imports nothing heavy.

Everything here runs in every pytest session of everyone who installed the package, so a
hook first looks whether tasks are concerned at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_harbor import hookspecs
from pytest_harbor.collection import (
    fixtures,
    guard,
    options,
    step_fixtures,
    step_places,
    step_reports,
)
from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.private import agent_is_ours, leave_as_written

if TYPE_CHECKING:
    from pytest_harbor.collection.step_reports import Status
    from pytest_harbor.collection.step_tally import StepTally

AGENT: Final = "harbor_agent"
ATTEMPT: Final = "_harbor_attempt"
MARKER_HELP: Final = (
    "harbor(path, agent=None, min_reward=None): the task folder that the fixtures of "
    "pytest-harbor are about, relative to the test's file or the root directory. "
    "Collected tasks carry it with task, difficulty and category"
)
DATASET_FILE: Final = "dataset.toml"
_TASK_ID: Final = re.compile(r"(/|^)(task\.toml|[^/]*\.json)::")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options and ini keys."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Our own hooks, before any ``conftest.py`` implements them."""
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before pytest imports ``conftest.py`` files, some of them from task folders."""
    guard.keep_out_of_tasks(early_config)
    leave_as_written(early_config, "pytest_harbor")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """``--harbor-agents`` and ``--harbor-sweep`` take the place of a test run."""
    if config.getoption(options.LIST_AGENTS):
        from pytest_harbor.collection.agent_list import show

        return show(config)
    if config.getoption(options.SWEEP):
        from pytest_harbor.collection.sweeping import sweep

        return sweep(config)
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Marker, fixtures, and the state of the session."""
    config.addinivalue_line("markers", MARKER_HELP)
    config.pluginmanager.register(fixtures, "harbor-fixtures")
    config.pluginmanager.register(step_fixtures, "harbor-step-fixtures")
    config.pluginmanager.register(_Session(config), "harbor-session")


class _Session:
    """The hooks that need the state of this session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._state = sessions.HarborSession(config)
        config.stash[sessions.KEY] = self._state
        self._is_ready = False  # tasks were collected and can be run
        self._tally: StepTally | None = None

    def pytest_unconfigure(self) -> None:
        self._state.close()
        if self._state.has("interrupts"):
            self._state.interrupts.disarm()

    # Collection.

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._root = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix == ".py":
            return None
        if self._is_nothing_to_collect(collection_path):
            return True
        if not guard.is_task_folder(collection_path):
            return None
        if not self._state.is_below_named(self._root, collection_path.parent):
            # Beside the task that was named: making a node of it only to throw it
            # away costs seconds among thousands.
            return True
        from pytest_harbor.collection.findings import warn_of_hidden_task

        warn_of_hidden_task(self._config, collection_path)
        return None

    def _is_nothing_to_collect(self, path: Path) -> bool:
        return (
            # What agents left behind is nothing to run on the host.
            self._state.holds_results(path)
            # Nor are the artifacts of step tasks, unless they were named.
            or (step_places.is_data(path) and not self._root.isinitpath(path))
            # Tasks would be collected again and again, without end.
            or guard.is_loop(path)
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(
        self, path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        if guard.is_task_folder(path):
            from pytest_harbor.collection.folders import TaskFolder

            self._state.tasks_seen = self._state.folders_seen = True
            folder: pytest.Collector = TaskFolder.from_parent(parent, path=path)
            return folder
        if self._state.is_below_named(self._root, path) and guard.looks_like_a_task(
            path
        ):
            from pytest_harbor.collection.findings import warn_of_lookalike

            warn_of_lookalike(self._config, path)
        return None

    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        if file_path.suffix == ".json":
            return self._collect_json(file_path, parent)
        if file_path.name == DATASET_FILE:
            from pytest_harbor.collection.folders import collect_dataset

            return collect_dataset(file_path, parent)
        if file_path.suffix == ".toml" and self._root.isinitpath(file_path):
            # Only by its name: the tasks of an eval are collected in their places.
            from pytest_harbor.collection.step_evals import collect_eval

            return collect_eval(file_path, parent)
        return None

    def _collect_json(
        self, path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        patterns = options.step_file_patterns(self._config)
        if not step_places.is_collected(path, patterns, self._config.rootpath):
            return None
        from pytest_harbor.collection.step_files import collect_step_file

        return collect_step_file(path, parent)

    @pytest.hookimpl(trylast=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if AGENT in metafunc.fixturenames or ATTEMPT in metafunc.fixturenames:
            parametrize(metafunc, self._state)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        from pytest_harbor.collection.findings import warn_of_empty_paths

        warn_of_empty_paths(self._config, items)
        if self._state.tasks_seen:
            from pytest_harbor.collection.step_choices import warn_of_idle_choices

            warn_of_idle_choices(self._config, items)
        if self._state.tasks_seen and self._state.is_controller:
            self._state.check_names()
            self._is_ready = True

    # Reports.

    def pytest_report_collectionfinish(self) -> list[str]:
        if not self._is_ready or self._config.get_verbosity() < 0:
            return []
        from pytest_harbor.collection.terminal import header

        return header(self._state)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport, config: pytest.Config
    ) -> Status | None:
        if isinstance(report, step_reports.StepReport):
            return step_reports.status(report, config)
        return None

    def pytest_report_to_serializable(self, report: object) -> dict[str, Any] | None:
        return step_reports.to_serializable(report)

    def pytest_report_from_serializable(
        self, data: dict[str, Any]
    ) -> step_reports.StepReport | None:
        return step_reports.from_serializable(data)

    def pytest_runtest_logstart(self) -> None:
        if self._state.has("interrupts"):
            self._state.interrupts.goes_on()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._state.is_worker:
            return
        if self._tally is None:
            if not isinstance(report, step_reports.StepReport):
                return
            from pytest_harbor.collection.step_tally import StepTally

            self._tally = StepTally(self._config)
        self._tally.meet(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._state.close()
        if self._state.is_controller and self._state.tasks_ran():
            from pytest_harbor.collection.terminal import finish

            finish(self._state)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> None:
        if exitstatus == pytest.ExitCode.INTERRUPTED and self._state.tasks_ran():
            from pytest_harbor.collection.terminal import roll_up

            # Workers of pytest-xdist wrote their last records only now.
            roll_up(self._state)
        if self._state.summary is not None or self._state.trouble:
            from pytest_harbor.collection.terminal import write_summary

            write_summary(self._state, terminalreporter)

    # pytest-xdist, in its controller.

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput.update(self._state.worker_input())

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        from pytest_harbor.collection.terminal import meet_tasks

        if not self._state.tasks_seen and any(_TASK_ID.search(name) for name in ids):
            self._state.folders_seen = any("task.toml::" in name for name in ids)
            meet_tasks(self._state)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        if error and self._state.tasks_ran():
            from pytest_harbor.collection.terminal import sweep_after_crash

            sweep_after_crash(self._state)


def parametrize(metafunc: pytest.Metafunc, state: sessions.HarborSession) -> None:
    """One item per agent and attempt of a task; per agent of a Python test.

    A Python test keeps its plain name with a single agent, and where its marker names one.
    A ``conftest.py`` that parametrises or replaces ``harbor_agent`` has its way.
    """
    is_task = metafunc.function.__globals__.get("__name__") == (
        "pytest_harbor.collection.items"
    )
    settings = state.settings
    marked = _kwargs(metafunc.definition).get("agent")
    has_agent = AGENT in metafunc.fixturenames
    is_ours = has_agent and agent_is_ours(metafunc, AGENT, fixtures.__name__)
    if is_task and has_agent and settings.validate and not is_ours:
        from pytest_harbor.collection.findings import warn_of_unvalidated

        warn_of_unvalidated(metafunc.config, metafunc.definition.path)
    if is_ours and (is_task or (marked is None and len(settings.agents) > 1)):
        metafunc.parametrize(AGENT, settings.agents, indirect=True)
    if is_task and settings.attempts > 1:
        metafunc.parametrize(ATTEMPT, range(1, settings.attempts + 1), indirect=True)


def _kwargs(item: pytest.Item) -> Mapping[str, object]:
    mark = item.get_closest_marker("harbor")
    return {} if mark is None else mark.kwargs
