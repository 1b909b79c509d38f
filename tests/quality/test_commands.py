"""README's two commands, and CI's use of the second."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / ".ci" / "run"


def readme_command(name: str) -> str:
    pattern = rf"<!-- command: {name} -->\n```sh\n(.+)\n```\n"
    [command] = re.findall(pattern, (ROOT / "README.md").read_text())
    return command


@pytest.mark.parametrize(
    ("name", "installs", "runs"),
    [
        ("examples", ".[local]", ".venv/bin/pytest examples/local"),
        ("tests", ".[dev]", ".venv/bin/pytest -n 2"),
    ],
)
def test_each_command_is_one_line_from_nothing(name, installs, runs):
    command = readme_command(name)
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert f"'{installs}' " in command
    assert command.endswith(f" && {runs}")


def test_ci_runs_the_readme_command():
    """The function of the script that finds the command, run for real."""
    script = CI.read_text()
    function = re.search(
        r"^readme_command\(\) \{.*?^\}", script, re.DOTALL | re.MULTILINE
    )
    done = subprocess.run(
        ["bash", "-c", f"{function[0]}\nreadme_command tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == readme_command("tests")
    assert 'bash -c "$command --require-docker"' in script


def test_ci_script_is_valid_and_names_no_machine():
    subprocess.run(["bash", "-n", CI], check=True)
    assert "set -euo pipefail" in CI.read_text()
    assert not re.search(r"(?<![\w.$])/(home|work|root|tmp)/", CI.read_text())
    assert CI.stat().st_mode & 0o111


def test_shown_output_is_of_the_examples():
    """The block in README names every example task."""
    text = (ROOT / "README.md").read_text()
    shown = text.partition("<!-- output: examples -->")[2].partition("## ")[0]
    tasks = [path.parent.name for path in ROOT.glob("examples/local/*/task.toml")]
    assert [task for task in tasks if task not in shown] == []
