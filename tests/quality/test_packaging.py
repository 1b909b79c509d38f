"""The wheel that people install holds the package, and only the package."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pytest_harbor

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The project's wheel, built by its own build backend (no network, no isolation)."""
    target = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import hatchling.build as b; print(b.build_wheel({str(target)!r}))",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(target / done.stdout.split()[-1]) as archive:
        yield archive


def test_holds_every_module_and_the_type_marker(wheel):
    packaged = {name for name in wheel.namelist() if name.startswith("pytest_harbor/")}
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "pytest_harbor").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources <= packaged
    assert "pytest_harbor/py.typed" in packaged


def test_holds_nothing_else(wheel):
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    info = f"pytest_harbor-{pytest_harbor.__version__}.dist-info"
    assert tops == {"pytest_harbor", info}
    assert not [n for n in wheel.namelist() if n.endswith(".pyc")]


def test_entry_point_and_metadata(wheel):
    info = f"pytest_harbor-{pytest_harbor.__version__}.dist-info"
    entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    assert "[pytest11]\nharbor = pytest_harbor.plugin" in entry_points
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "Requires-Python: >=3.10" in metadata
    assert "Provides-Extra: local" in metadata
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
