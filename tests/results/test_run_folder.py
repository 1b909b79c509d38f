"""Run folders: the latest link, how many are kept, sessions side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_harbor.results.run_folder import RunFolder
from pytest_harbor.sandboxes.owner import Owner


def name(number: int) -> str:
    return f"20260101-0000{number:02}-abcdef"


def test_made_on_first_use_with_link_and_gitignore(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "deep/results", name(1))
    assert not run.exists
    assert run.path.is_dir()
    assert (run.results / "latest").resolve() == run.path
    assert (run.results / ".gitignore").read_text().endswith("*\n")


def test_a_worker_that_comes_second_uses_the_same(tmp_path: Path) -> None:
    first = RunFolder(tmp_path, name(1)).path
    RunFolder(tmp_path, name(2)).path.is_dir()
    assert RunFolder(tmp_path, name(1)).path == first
    assert (tmp_path / "latest").readlink() == Path(name(2))


def test_a_folder_of_the_project_gets_no_gitignore(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert RunFolder(tmp_path, name(1)).path.is_dir()
    assert not (tmp_path / ".gitignore").exists()


def test_the_last_ten_are_kept_and_nothing_else_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for number in range(14):
        assert RunFolder(tmp_path, name(number)).path.is_dir()
    left = sorted(entry.name for entry in tmp_path.iterdir())
    assert left == [name(n) for n in range(4, 14)] + ["latest", "mine"]


@pytest.mark.parametrize("is_alive", [True, False])
def test_runs_that_go_on_are_spared(tmp_path: Path, is_alive: bool) -> None:
    own = Owner.current()
    owner = own if is_alive else Owner(own.place, own.pid, own.start_ticks + 1)
    old = RunFolder(tmp_path, name(0), owner=str(owner)).path
    for number in range(1, 12):
        assert RunFolder(tmp_path, name(number)).path.is_dir()
    assert old.is_dir() is is_alive
    if is_alive:
        assert json.loads((old / "run.json").read_text())["owner"] == str(owner)


def test_a_latest_of_the_users_own_stays(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    assert RunFolder(tmp_path, name(1)).path.is_dir()
    assert not (tmp_path / "latest").is_symlink()


def test_episode_folders_have_safe_names_of_their_own(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, name(1))
    made = [
        run.new_episode("my-task[oracle-1]").name,
        run.new_episode("my-task[oracle-1]").name,
        run.new_episode("../../etc/passwd").name,
        run.new_episode("..").name,
        run.new_episode("x" * 400).name,
    ]
    assert made == [
        "my-task_oracle-1",
        "my-task_oracle-1.2",
        "etc_passwd",
        "episode",
        "x" * 150,
    ]
    assert {entry.parent for entry in run.path.iterdir()} == {run.path}
