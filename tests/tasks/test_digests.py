"""What changes a task's digest, and what does not (spec 1.4)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_harbor.tasks.folder.dataset import Dataset, load_dataset
from pytest_harbor.tasks.folder.digest import folder_digest, task_digest
from pytest_harbor.tasks.folder.load import load_task
from task_folders import write_task


def make(folder: Path) -> Path:
    write_task(
        folder / "task", solve="true", files={"environment/a/b.txt": "x", "ab": ""}
    )
    (folder / "task/tests/link").symlink_to("test.sh")
    return folder / "task"


def digest(folder: Path, dataset: Dataset | None = None) -> str:
    return task_digest(folder_digest(folder), load_task(folder, dataset=dataset))


def relink(folder: Path) -> None:
    (folder / "tests/link").unlink()
    (folder / "tests/link").symlink_to("../instruction.md")


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda folder: (folder / "environment/a/b.txt").write_text("y"),
    "a new file": lambda folder: (folder / "notes").write_text(""),
    "a new folder": lambda folder: (folder / "environment/c").mkdir(),
    "a hidden file further down": lambda folder: write_task(
        folder, files={"tests/.hidden": "x"}
    ),
    "a removed file": lambda folder: (folder / "ab").unlink(),
    "a renamed file": lambda folder: (folder / "ab").rename(folder / "ba"),
    "a moved file": lambda folder: (folder / "ab").rename(folder / "environment/ab"),
    "the executable bit": lambda folder: (folder / "tests/test.sh").chmod(0o755),
    "a link's target": relink,
}

NO_CHANGES: dict[str, Callable[[Path], object]] = {
    "times": lambda folder: os.utime(folder / "ab", (1, 1)),
    "other mode bits": lambda folder: (folder / "ab").chmod(0o600),
    "left-overs of Python": lambda folder: write_task(
        folder, files={"tests/__pycache__/x.pyc": "x"}
    ),
    "what tools keep for themselves at the top": lambda folder: write_task(
        folder, files={".pytest_cache/x": "x", ".git/HEAD": "x", ".coverage": "x"}
    ),
    "left-overs of macOS": lambda folder: (folder / ".DS_Store").write_text("x"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_changes_with(tmp_path: Path, case: str) -> None:
    folder = make(tmp_path)
    before = digest(folder)

    CHANGES[case](folder)

    assert digest(folder) != before


@pytest.mark.parametrize("case", NO_CHANGES)
def test_does_not_change_with(tmp_path: Path, case: str) -> None:
    folder = make(tmp_path)
    before = digest(folder)

    NO_CHANGES[case](folder)

    assert digest(folder) == before


def test_is_the_same_for_a_copy_elsewhere(tmp_path: Path) -> None:
    folder = make(tmp_path / "one")
    copy = tmp_path / "two/task"
    shutil.copytree(folder, copy, symlinks=True)

    assert digest(copy) == digest(folder)


def test_depends_on_the_datasets_settings_for_this_task(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "tests/test.sh").unlink()
    (folder / "tests/link").unlink()

    def with_dataset(toml: str, verifier: str = "") -> str:
        (tmp_path / "dataset.toml").write_text(toml)
        (tmp_path / "verifier.py").write_text(verifier)
        return digest(folder, load_dataset(tmp_path))

    plain = with_dataset("")

    assert with_dataset("[gym.tasks.other]\ncpus = 1\n") == plain
    assert with_dataset("[gym.tasks.task]\ncpus = 1\n") != plain
    assert with_dataset("[gym.defaults]\ntimeout_multiplier = 2\n") != plain
    assert with_dataset("[gym.defaults]\nresource_multiplier = 2\n") != plain
    assert with_dataset("[gym.builds]\nplatform = 'linux/amd64'\n") != plain
    assert with_dataset("[gym.builds]\nforce = true\n") == plain
    assert with_dataset("", "changed") != plain
    assert with_dataset("") == plain
