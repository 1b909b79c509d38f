"""Virtual environments for local servers: built once, kept, explained when they fail."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.graphs import python_environments as subject
from pytest_harbor.graphs.python_environments import built_environment, own_environment


def write_requirements(folder: Path, text: str = "") -> Path:
    file = folder / "requirements.txt"
    file.write_text(text)
    return file


def build(requirements: Path, cache: Path, **options) -> subject.PythonEnvironment:
    async def run() -> subject.PythonEnvironment:
        return await built_environment(requirements, cache=cache, **options)

    return anyio.run(run)


def run_python(python: str, code: str) -> str:
    async def run() -> str:
        done = await anyio.run_process([python, "-c", code])
        return done.stdout.decode().strip()

    return anyio.run(run)


@pytest.mark.slow
def test_it_is_built_once_and_has_nothing_of_the_runners(tmp_path, monkeypatch):
    file = write_requirements(tmp_path, "# nothing\n")
    first = build(file, tmp_path / "cache")
    find = "import importlib.util as u; print(u.find_spec('pydantic'))"
    assert run_python(first.executable, find) == "None"

    def refuse(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(subject, "_build", refuse)
    assert build(file, tmp_path / "cache") == first
    assert first.shown == (Path(first.executable).parents[1],)


def test_other_content_and_what_it_includes_is_another_environment(tmp_path):
    file = write_requirements(tmp_path, "-r more.txt\n")
    keys = [subject._key(file)]
    (tmp_path / "more.txt").write_text("one")
    keys.append(subject._key(file))
    (tmp_path / "more.txt").write_text("two")
    keys.append(subject._key(file))
    file.write_text("other")
    keys.append(subject._key(file))
    assert len(set(keys)) == 4


def test_one_that_was_cut_off_is_built_anew(tmp_path, monkeypatch):
    file = write_requirements(tmp_path)
    folder = tmp_path / "cache" / subject._key(file)
    folder.mkdir(parents=True)
    (folder / "half").touch()
    commands = []

    async def run(command: list[str], _: Path) -> None:
        assert not (folder / "half").exists()
        folder.mkdir(exist_ok=True)
        commands.append(command)

    monkeypatch.setattr(subject, "_run", run)
    build(file, tmp_path / "cache")
    assert [command[2] for command in commands] == ["venv", "pip"]


@pytest.mark.slow
def test_a_failure_shows_pips_last_lines(tmp_path):
    file = write_requirements(tmp_path, "--no-index\nno-such-package-anywhere\n")
    with pytest.raises(SandboxStartFailed, match="no-such-package-anywhere") as caught:
        build(file, tmp_path / "cache")
    assert "cannot be installed" in str(caught.value)


def test_those_who_waited_for_a_failed_build_do_not_build_again(tmp_path, monkeypatch):
    file = write_requirements(tmp_path, "x")
    builds = []

    async def fail(folder: Path, _: Path) -> None:
        builds.append(folder)
        await anyio.sleep(0.05)
        raise SandboxStartFailed("no packages today")

    monkeypatch.setattr(subject, "_build", fail)
    problems = []

    async def one() -> None:
        try:
            await built_environment(file, cache=tmp_path / "cache")
        except SandboxStartFailed as error:
            problems.append(str(error))

    async def both() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)

    anyio.run(both)
    assert problems == ["no packages today"] * 2
    assert len(builds) == 1


def test_a_build_has_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(subject, "_build", lambda *_: anyio.sleep_forever())
    file = write_requirements(tmp_path)
    with pytest.raises(SandboxStartFailed, match=r"more than 0\.05 s"):
        build(file, tmp_path / "cache", timeout_seconds=0.05)


def test_the_runners_own_shows_no_project(monkeypatch, tmp_path):
    own = own_environment()
    assert own.executable == sys.executable
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for name in ("bin", "lib", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "pyvenv.cfg").touch()
    shown = own_environment().shown
    assert {tmp_path / "bin", tmp_path / "lib", tmp_path / "pyvenv.cfg"} <= set(shown)
    assert tmp_path / "tests" not in shown
    assert tmp_path not in shown
