"""Runs pytest on the examples as a person would: in a process and a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Run:
    """A finished run of pytest."""

    code: int
    output: str
    report: ET.Element | None
    results: Path

    @property
    def cases(self) -> dict[str, ET.Element]:
        """Test cases of the JUnit report by name."""
        assert self.report is not None, self.output
        return {case.get("name"): case for case in self.report.iter("testcase")}

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of graded episodes."""
        lines = (self.results / "latest" / "rollouts.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def properties(self, name: str) -> dict[str, str]:
        """Properties of one case."""
        return {
            p.get("name"): p.get("value") for p in self.cases[name].iter("property")
        }


@pytest.fixture
def run_pytest(tmp_path):
    """Run pytest in the project's folder; reports and results go to tmp_path."""

    def run(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Run:
        report, results = tmp_path / "report.xml", tmp_path / "results"
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **(env or {})}
        if "DOCKER_HOST" in os.environ:
            environment["DOCKER_HOST"] = os.environ["DOCKER_HOST"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                f"--junitxml={report}",
                f"--harbor-results={results}",
                *map(str, arguments),
            ],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        # The parser is strict: a report that is not XML fails here.
        parsed = ET.parse(report).getroot() if report.exists() else None
        return Run(done.returncode, done.stdout + done.stderr, parsed, results)

    return run
