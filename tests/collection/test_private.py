"""The private names of pytest that we lean on still exist; without them we degrade."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from pytest_harbor.collection import private

if TYPE_CHECKING:
    from scratch_project import Project


def test_junit_writer_is_found(project: Project) -> None:
    project.file(
        "conftest.py",
        """
from pytest_harbor.collection import private
def pytest_collection_finish(session):
    log = private.junit_log(session.config)
    print("LOG", log.report_duration, callable(log.node_reporter))
    private.add_suite_property(log, "a", "b")
""",
    )
    project.file("test_x.py", "def test_x(): pass")
    result = project.run("--junitxml=j.xml", "-s")
    result.stdout.fnmatch_lines(["*LOG total True*"])
    assert '<property name="a" value="b"' in (project.path / "j.xml").read_text()


def test_reports_can_be_taken_out_of_the_counts(project: Project) -> None:
    project.file(
        "conftest.py",
        """
from pytest_harbor.collection import private
def pytest_runtest_logfinish(nodeid, location):
    stats = CONFIG.pluginmanager.getplugin("terminalreporter").stats
    if "test_y" in nodeid:
        private.forget_reports(CONFIG, list(stats["passed"][-1:]))
def pytest_configure(config):
    global CONFIG
    CONFIG = config
""",
    )
    project.file("test_x.py", "def test_x(): pass\ndef test_y(): pass")
    project.run().assert_outcomes(passed=1)


def test_without_a_terminal_there_is_nothing_to_take_back() -> None:
    manager = SimpleNamespace(getplugin=lambda _name: None)
    private.forget_reports(SimpleNamespace(pluginmanager=manager), [SimpleNamespace()])  # type: ignore[arg-type,list-item]


def test_functions_have_fixture_info(request: pytest.FixtureRequest) -> None:
    assert private.fixture_info(request.node) is not None
    assert private.fixture_info(SimpleNamespace()) is None


def test_skip_at_item_is_a_skip() -> None:
    error = private.skip_at_item("why")
    assert isinstance(error, pytest.skip.Exception)
    assert error._use_item_location is True


def test_without_the_private_names_nothing_breaks() -> None:
    private.take_from_row(SimpleNamespace(), SimpleNamespace(), 1.0)
    private.take_from_row(
        SimpleNamespace(report_duration="total"), SimpleNamespace(), 1.0
    )
    private.add_suite_property(SimpleNamespace(), "a", "b")
    private.name_place(SimpleNamespace(), "path", "message")
    private.name_place("text", "path", "message")
    assert private.agent_is_ours(SimpleNamespace(), "harbor_agent", "module")


def test_junit_time_is_taken_off_the_total_only() -> None:
    row = SimpleNamespace(duration=3.0)
    log = SimpleNamespace(report_duration="call", node_reporter=lambda _: row)
    private.take_from_row(log, SimpleNamespace(), 1.0)
    assert row.duration == 3.0
    log.report_duration = "total"
    private.take_from_row(log, SimpleNamespace(), 1.0)
    assert row.duration == 2.0


@pytest.mark.slow
def test_our_modules_are_not_parsed_for_their_assertions(project: Project) -> None:
    project.file(
        "test_x.py",
        """
def test_x():
    import pytest_harbor.graphs.run as ours
    assert type(ours.__loader__).__name__ == "SourceFileLoader"
    assert type(__loader__).__name__ == "AssertionRewritingHook"
""",
    )
    project.run_apart().assert_outcomes(passed=1)
    plain = SimpleNamespace(pluginmanager=SimpleNamespace())
    private.leave_as_written(plain, "pytest_harbor")
