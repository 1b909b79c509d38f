"""What the plugin costs people whose session has nothing to do with tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from scratch_project import Project

HEAVY = ("pydantic", "anyio", "docker", "tomli", "filelock", "pathspec", "requests")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n1"]])
def test_without_tasks_nothing_heavy_is_imported(
    project: Project, workers: list[str]
) -> None:
    project.file(
        "test_x.py",
        f"""
import sys
def test_x():
    assert "pytest_harbor.plugin" in sys.modules
    loaded = {{name.partition(".")[0] for name in sys.modules}}
    assert not loaded & set({HEAVY!r})
    assert "pytest_harbor.tasks" not in sys.modules
    assert "pytest_harbor.sandboxes" not in sys.modules
""",
    )
    # The other plugins of this environment import some of these themselves.
    result = project.run_apart(
        *("-p", "no:anyio", "-p", "no:hypothesispytest", "-p", "no:platformdirs"),
        *workers,
    )
    result.assert_outcomes(passed=1)
    assert "harbor:" not in str(result.stdout)
    assert not (project.path / ".pytest_harbor").exists()


def test_the_plugin_can_be_disabled(project: Project) -> None:
    project.task("t")
    result = project.run_apart("datasets", "-p", "no:harbor")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
