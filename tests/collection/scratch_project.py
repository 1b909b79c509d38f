"""A scratch project for tests that run pytest on real task folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from task_folders import write_task


class Project:
    reruns: ClassVar = ("-p", "rerunfailures", "--reruns=1")
    """Options of a run whose failed items run once again."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.run: Callable[..., pytest.RunResult] = pytester.runpytest_inprocess
        self.run_apart: Callable[..., pytest.RunResult] = pytester.runpytest_subprocess

    def task(self, name: str = "my-task", toml: str = "", **parts: Any) -> Path:
        """A task below ``datasets``; graded 1 unless told otherwise."""
        return write_task(self.path / "datasets" / name, toml, **parts)

    def graded(self, name: str, reward: object, toml: str = "", **parts: Any) -> Path:
        test = f"echo {reward} > /logs/verifier/reward.txt"
        return self.task(name, toml, test=test, **parts)

    def file(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def ids(self, *args: str) -> list[str]:
        """Node IDs of a collection, in order."""
        result = self.run("--collect-only", "-q", *args)
        return [line for line in result.outlines if "::" in line]

    @property
    def latest(self) -> Path:
        return self.path / ".pytest_harbor" / "latest"

    def rows(self, name: str) -> list[dict[str, Any]]:
        file = self.latest / name
        if not file.exists():
            return []
        return [json.loads(line) for line in file.read_text().splitlines()]
