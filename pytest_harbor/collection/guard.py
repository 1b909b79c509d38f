"""Keep pytest away from what lies inside task folders.

A task folder is untrusted data: its ``conftest.py``, Python files and pytest
configuration are the task's own and never run on the host.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

TASK_FILE: Final = "task.toml"


def is_task_folder(path: Path) -> bool:
    """True for a folder that holds ``task.toml``; one look at the disk."""
    return os.path.isfile(os.path.join(path, TASK_FILE))  # noqa: PTH113, PTH118


def outermost_task(path: Path) -> Path | None:
    """The outermost task folder that ``path`` is or lies in."""
    found = None
    for folder in (path, *path.parents):
        if is_task_folder(folder):
            found = folder
    return found


def keep_out_of_tasks(config: pytest.Config) -> None:
    """Keep the import of initial ``conftest.py`` files out of task folders.

    Before it collects anything, pytest imports ``conftest.py`` and ``test*/conftest.py`` of
    every folder that was named. A task that was named is replaced, for that
    import only, by the folder that holds it, and the ``conftest.py`` of a task in it whose name
    begins with ``test`` counts as imported: pytest finds an empty plugin of its name.

    Raises:
        pytest.UsageError: the configuration file pytest picked, or a path that was
            named, lies inside a task folder.
    """
    _refuse_configuration(config)
    namespace = config.known_args_namespace
    start = config.invocation_params.dir
    if namespace.file_or_dir or outermost_task(start) is not None:
        given = namespace.file_or_dir or [str(start)]
        namespace.file_or_dir = [_outside(argument, start) for argument in given]
    # An empty list means testpaths to pytest, or where it was started.
    anchors = [_absolute(arg.split("::")[0], start) for arg in namespace.file_or_dir]
    if not anchors:
        patterns = config.getini("testpaths")
        found = [path for text in patterns for path in config.rootpath.glob(text)]
        anchors = [*found, start]
    for anchor in anchors:
        _stand_in_for_tests(config, anchor)


def _stand_in_for_tests(config: pytest.Config, anchor: Path) -> None:
    for folder in anchor.glob("test*") if anchor.is_dir() else ():
        file = folder / "conftest.py"
        if is_task_folder(folder) and file.is_file():
            name = str(file)
            if not config.pluginmanager.has_plugin(name):
                config.pluginmanager.register(types.ModuleType("conftest"), name)


def _outside(argument: str, start: Path) -> str:
    path = _absolute(argument.split("::", maxsplit=1)[0], start)
    task = outermost_task(path)
    if task is None:
        return argument
    if path not in {task, task / TASK_FILE} and path.exists():
        raise pytest.UsageError(
            f"{argument}: lies inside the task folder {task}, whose content is not "
            f"collected; name the folder itself"
        )
    return str(task.parent)


def _absolute(argument: str, start: Path) -> Path:
    return Path(os.path.abspath(start / argument))  # noqa: PTH100 - links stay as named


def _refuse_configuration(config: pytest.Config) -> None:
    file = config.inipath
    if file is None or not has_pytest_table(file):
        return
    task = outermost_task(file.parent)
    if task is not None:
        raise pytest.UsageError(
            f"{file}: this pytest configuration lies inside the task folder {task}, "
            f"which is untrusted data. Run pytest with -c FILE, or name the folder "
            f"above the task"
        )


def has_pytest_table(file: Path) -> bool:
    """True unless it is a ``pyproject.toml`` that says nothing to pytest.

    pytest falls back to such a file to find its root directory, which is harmless.
    """
    if file.name != "pyproject.toml":
        return True
    try:
        return "[tool.pytest" in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True


def named_paths(config: pytest.Config) -> list[Path]:
    """The paths that were typed on the command line, without their ``::`` parts."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return []
    start = config.invocation_params.dir
    return [_absolute(argument.split("::")[0], start) for argument in config.args]


def is_loop(path: Path) -> bool:
    """True for a symbolic link to a folder that holds it: following never ends."""
    if not path.is_symlink():
        return False
    target = path.resolve()
    place = path.parent.resolve()
    return target == place or target in place.parents


def looks_like_a_task(path: Path) -> bool:
    """True for ``instruction.md`` beside ``tests/`` (field notes 3.6)."""
    return (path / "instruction.md").is_file() and (path / "tests").is_dir()


def old_tasks(path: Path, *, limit: int = 1000) -> Iterable[Path]:
    """Folders with ``task.yaml``, the format before ``task.toml``: here and one below."""
    if (path / "task.yaml").is_file():
        yield path
        return
    try:
        entries = sorted(path.iterdir())[:limit] if path.is_dir() else []
    except OSError:
        return
    for entry in entries:
        if (entry / "task.yaml").is_file() and not is_task_folder(entry):
            yield entry
