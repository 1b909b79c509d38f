"""docs/ names every option, ini key, fixture, hook and failure kind, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import pytest_harbor
from pytest_harbor import errors

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OPTION = r"(--harbor-[a-z-]*[a-z])"
FIXTURES = {
    "deployed_agent",
    "deployed_env",
    "harbor_agent",
    "harbor_episode",
    "harbor_judge",
    "harbor_object_store",
    "harbor_provider",
    "harbor_run",
    "harbor_sandbox",
    "harbor_sandbox_factory",
    "harbor_settings",
    "harbor_task",
}


def words(page: str, pattern: str) -> set[str]:
    return set(re.findall(pattern, (DOCS / page).read_text()))


@pytest.fixture(scope="module")
def parser(request):
    """pytest's parser after the plugin registered itself."""
    return request.config._parser


def registered_options(parser) -> set[str]:
    options = parser._anonymous.options + [
        option for group in parser._groups for option in group.options
    ]
    names = {name for option in options for name in option.names()}
    return {name for name in names if name.startswith("--harbor-")}


def registered_ini_keys(parser) -> set[str]:
    return {name for name in parser._inidict if name.startswith("harbor_")}


def test_options(parser):
    options = registered_options(parser)
    assert options
    assert words("options.md", OPTION) == options


def test_ini_keys(parser):
    keys = registered_ini_keys(parser)
    assert words("options.md", r"`(harbor_[a-z0-9_]+)`") == keys


ACTIONS = {"--harbor-agents", "--harbor-sweep"}
"""What is done instead of a test run; a setting of a project it cannot be."""


def test_every_option_has_an_ini_twin(parser):
    settings = registered_options(parser) - ACTIONS
    twins = {o.removeprefix("--").replace("-", "_") for o in settings}
    assert twins <= registered_ini_keys(parser)


@pytest.mark.parametrize("page", sorted(p.name for p in DOCS.glob("*.md")))
def test_pages_name_only_what_exists(parser, page):
    assert words(page, OPTION) <= registered_options(parser)
    keys = words(page, r"(?<![a-z_])(harbor_[a-z0-9_]+)") - FIXTURES
    assert keys <= registered_ini_keys(parser)


def test_fixtures():
    from pytest_harbor.collection import fixtures, step_fixtures

    names = {*vars(fixtures), *vars(step_fixtures)}
    defined = {name for name in names if name.startswith(("harbor_", "deployed_"))}
    assert defined == FIXTURES
    documented = words("fixtures-and-hooks.md", r"\| `([a-z0-9_]+)` \| \w+ \|")
    assert documented == FIXTURES


def test_hooks():
    from pytest_harbor import hookspecs

    specified = {name for name in vars(hookspecs) if name.startswith("pytest_harbor_")}
    documented = words("fixtures-and-hooks.md", r"\| `(pytest_harbor_[a-z0-9_]+)` \|")
    assert documented == specified


def test_failure_kinds():
    kinds = {
        value
        for name, value in vars(errors).items()
        if name.isupper() and isinstance(value, str)
    }
    documented = words("outcomes.md", r"`([a-z0-9_]+(?::[a-z0-9_]+)?)`")
    assert sorted(kinds - documented) == []


@pytest.mark.slow
def test_reliability_names_tests_that_exist():
    named = re.findall(
        r"`(tests/[^`]+\.py)::(test_\w+)`", (DOCS / "reliability.md").read_text()
    )
    assert len(named) > 20
    rows = [
        line
        for line in (DOCS / "reliability.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    headers = [row for row in rows if row.startswith(("| Fault", "| ---"))]
    without = [row for row in rows if row not in headers and "::test_" not in row]
    assert without == []
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text())
        names = {node.name for node in ast.walk(tree) if hasattr(node, "name")}
        assert test in names, f"{file}::{test}"


def test_changelog_has_this_version():
    assert f"## [{pytest_harbor.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_step_types():
    """Every field and every key that is not supported, in the section of its type."""
    from pytest_harbor.tasks.steps.keys import file_keys
    from pytest_harbor.tasks.steps.model import STEP_TYPES
    from pytest_harbor.tasks.steps.step import Step

    page = (DOCS / "step-tasks.md").read_text()
    sections = {part.split("\n")[0]: part for part in page.split("\n### ")[1:]}
    assert set(sections) == set(STEP_TYPES)
    for kind, model in STEP_TYPES.items():
        named = set(re.findall(r"`([a-z0-9_]+)`", sections[kind]))
        fields = file_keys(model) - file_keys(Step)
        assert fields | model.unsupported <= named, kind
