"""Python for servers in local sandboxes: the runner's own, or one built for them (spec 1.2).

Both lie on this machine and are shown to the sandbox read-only, under their own paths.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

import pytest_harbor
from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.machine import alone

_PARTS: Final = ("bin", "lib", "lib64", "pyvenv.cfg")
"""What an interpreter needs of its virtual environment; a project may lie beside."""
_PACKAGE_FOLDERS: Final = ("site-packages", "dist-packages")
_BASE: Final = Path(sys.base_prefix)
"""Local sandboxes see it anyway."""
_BASE_PYTHON: Final = str(Path(sys.executable).resolve())
"""Up to Python 3.10 a virtual environment links to whoever made it. That must be no other
environment, of which a sandbox sees nothing."""
_INCLUDED = re.compile(
    r"^\s*(?:-r|--requirement|-c|--constraint)[\s=]+(\S+)", re.MULTILINE
)
_LOG_LINES: Final = 30
_WITH_SCRIPTS: Final = 'PATH="$0:$PATH"; export PATH; exec "$@"'


@dataclass(frozen=True)
class PythonEnvironment:
    """An interpreter of this machine, and what must be shown for it to work."""

    executable: str
    shown: tuple[Path, ...]
    variables: tuple[tuple[str, str], ...] = ()

    def command(self, argv: Sequence[str]) -> tuple[str, ...]:
        """``argv`` as it is run with this environment's commands first on the PATH."""
        program, *rest = argv
        if program in ("python", "python3"):
            program = self.executable  # a system's own may have one of the two names
        scripts = str(Path(self.executable).parent)
        return ("/bin/sh", "-c", _WITH_SCRIPTS, scripts, program, *rest)


def own_environment() -> PythonEnvironment:
    """The runner's own interpreter and packages, pytest-harbor among them."""
    shown = list(_parts_of(Path(sys.prefix))) if sys.prefix != sys.base_prefix else []
    # The user's own site, and those that .pth files of this environment chain to it.
    for folder in dict.fromkeys(Path(entry) for entry in sys.path):
        is_shown = any(folder.is_relative_to(known) for known in (*shown, _BASE))
        if folder.name in _PACKAGE_FOLDERS and folder.is_dir() and not is_shown:
            shown.append(folder)
    package = Path(pytest_harbor.__file__).parent
    variables: tuple[tuple[str, str], ...] = ()
    if package.parent.name not in _PACKAGE_FOLDERS:
        # A checkout: of all that lies beside the package nothing is shown.
        shown.append(package)
        variables = (("PYTHONPATH", str(package.parent)),)
    return PythonEnvironment(sys.executable, tuple(shown), variables)


async def built_environment(
    requirements: Path, *, cache: Path | None = None, timeout_seconds: float = 600.0
) -> PythonEnvironment:
    """A virtual environment with the packages of a ``requirements.txt``, cached.

    It is built by pip once per content and Python version on this machine, whichever
    process needs it first, with the packages of that file alone.

    Raises:
        SandboxStartFailed: it cannot be built; with the last lines of pip's log.
    """
    folder = (cache or _cache_folder()) / _key(requirements)
    waiting_since = time.time()
    environment = PythonEnvironment(str(folder / "bin" / "python"), (folder,))
    complete = folder / ".complete"
    if complete.exists():
        return environment
    folder.parent.mkdir(parents=True, exist_ok=True)
    async with alone(folder.with_suffix(".lock")):
        failed = folder.with_suffix(".failed")
        if complete.exists():
            return environment
        if failed.exists() and failed.stat().st_mtime >= waiting_since:
            raise SandboxStartFailed(failed.read_text(encoding="utf-8"))
        try:
            with anyio.fail_after(timeout_seconds):
                await _build(folder, requirements)
        except TimeoutError:
            message = f"{requirements}: pip took more than {timeout_seconds:g} s"
            failed.write_text(message, encoding="utf-8")
            raise SandboxStartFailed(message) from None
        except SandboxStartFailed as error:
            failed.write_text(str(error), encoding="utf-8")
            raise
        complete.touch()
    return environment


async def _build(folder: Path, requirements: Path) -> None:
    await anyio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
    has_pip = importlib.util.find_spec("pip") is not None
    make = [_BASE_PYTHON, "-m", "venv", *(["--without-pip"] if has_pip else [])]
    await _run([*make, str(folder)], requirements)
    python = str(folder / "bin" / "python")
    pip = (
        [sys.executable, "-m", "pip", "--python", python]
        if has_pip
        else [python, "-m", "pip"]
    )
    install = ["install", "--disable-pip-version-check", "--no-input", "--quiet"]
    await _run([*pip, *install, "-r", str(requirements)], requirements)


async def _run(command: list[str], requirements: Path) -> None:
    done = await anyio.run_process(
        command,
        cwd=requirements.parent,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        tail = "\n".join(lines[-_LOG_LINES:])
        raise SandboxStartFailed(
            f"{requirements}: the packages cannot be installed (exit code "
            f"{done.returncode} of pip):\n{tail}"
        )


def _key(requirements: Path) -> str:
    digest = hashlib.sha256()
    for part in (*_texts(requirements), sys.version, sys.base_prefix):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:24]


def _texts(requirements: Path) -> Iterator[str]:
    """The file's text, and that of each file that it names."""
    todo, seen = [requirements], set()
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            if file == requirements:
                raise SandboxStartFailed(f"{file}: {error.strerror}") from error
            continue  # pip says it better
        yield text
        todo += [file.parent / name for name in _INCLUDED.findall(text)]


def _parts_of(prefix: Path) -> Iterator[Path]:
    return (prefix / part for part in _PARTS if (prefix / part).exists())


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base, "pytest-harbor", "python")
