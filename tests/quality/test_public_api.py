"""What is public is said once, resolves, and costs nothing to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pytest_harbor


def test_every_exported_name_resolves():
    missing = [
        name for name in pytest_harbor.__all__ if not hasattr(pytest_harbor, name)
    ]
    assert not missing


def test_the_list_is_sorted_and_complete():
    exported = list(pytest_harbor.__all__)
    assert exported == sorted(exported)
    assert set(exported) == set(pytest_harbor._HOMES)
    assert dir(pytest_harbor) == exported


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        pytest_harbor.nonsense  # noqa: B018


HEAVY = ("anyio", "docker", "filelock", "pathspec", "pydantic", "tomli", "xdist")


@pytest.mark.parametrize("module", ["pytest_harbor", "pytest_harbor.plugin"])
def test_importing_loads_nothing_heavy(module):
    """Every pytest session of everyone who installed it pays for this import."""
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        f"import {module}\n"
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "pytest_harbor" in loaded
    assert not loaded & set(HEAVY)
    outside = {m for m in loaded if m not in sys.stdlib_module_names}
    assert outside == {"pytest_harbor"}
