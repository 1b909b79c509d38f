"""``.harborignore`` in input folders (spec 1.5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.folder.load import load_task
from task_folders import write_steps_task, write_task

FILES = {
    "tests/a.pyc": "",
    "tests/keep.pyc": "",
    "tests/data/big.bin": "",
    "tests/data/deep/x": "",
    "tests/deep/a.pyc": "",
    "tests/deep/data": "",
}


@pytest.mark.parametrize(
    ("text", "dropped"),
    [
        ("", set()),
        ("# nothing\n\n", set()),
        ("*.pyc\n!keep.pyc\n", {"a.pyc", "deep/a.pyc"}),
        ("/a.pyc\n", {"a.pyc"}),
        ("data/\n", {"data", "data/big.bin", "data/deep", "data/deep/x"}),
        ("deep/*.pyc\r\n", {"deep/a.pyc"}),
        ("**/x\n", {"data/deep/x"}),
    ],
)
def test_the_dropped_paths(tmp_path: Path, text: str, dropped: set[str]) -> None:
    folder = write_task(tmp_path / "task", files={**FILES, "tests/.harborignore": text})

    assert load_task(folder).excluded == {"tests": dropped | {".harborignore"}}


@pytest.mark.parametrize("pattern", ["[z-a]", "!", "a\\"])
def test_a_pattern_that_is_none_is_a_problem_of_the_task(tmp_path, pattern) -> None:
    files = {"tests/.harborignore": f"*.pyc\n{pattern}\n"}
    folder = write_task(tmp_path / "task", files=files)
    with pytest.raises(TaskLoadError, match=r"tests/\.harborignore: cannot be read"):
        load_task(folder)


def test_it_is_honoured_in_input_folders_only(tmp_path: Path) -> None:
    ignore = {
        f"{name}.harborignore": "data\n"
        for name in (
            "",
            "environment/",
            "tests/",
            "solution/",
            "steps/a/",
            "steps/a/tests/",
            "steps/a/solution/",
            "steps/a/workdir/",
        )
    }
    folder = write_steps_task(tmp_path / "task", "a", files=ignore)

    assert set(load_task(folder).excluded) == {
        "tests",
        "solution",
        "steps/a/tests",
        "steps/a/solution",
    }


def test_without_an_ignore_file_nothing_is_dropped(tmp_path: Path) -> None:
    assert load_task(write_task(tmp_path / "task", files=FILES)).excluded == {}


def test_an_optional_file_may_be_left_out(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "task",
        files={"tests/verifier.py": "", "tests/.harborignore": "verifier.py"},
    )

    assert "verifier.py" in load_task(folder).excluded["tests"]


def test_an_unreadable_ignore_file_is_a_problem(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task", files={"tests/.harborignore": b"\xff"})

    with pytest.raises(TaskLoadError, match=r"tests/\.harborignore: cannot be read"):
        load_task(folder)
