"""The tools that ``tox`` runs one by one, as tests: what CI says is what pytest says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ["pytest_harbor", "tests", "examples", "conftest.py"]


def run(*command: str | Path) -> None:
    """Run one of the virtual environment's tools in the project's folder."""
    module, *arguments = map(str, command)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{module}:\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff_rules():
    run("ruff", "check", *CODE)


def test_ruff_format():
    run("ruff", "format", "--check", *CODE)


@pytest.mark.slow
def test_types():
    # mypy's cache stays in the checkout: a second run takes 2 s instead of 20.
    run("mypy")


def test_imports_point_down():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as c; c()",
            "--no-cache",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)


def test_documentation_builds(tmp_path):
    run("mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site")
    assert (tmp_path / "site" / "task-folders.html").is_file()
