"""Which JSON files become items, and what their items are called (design 5.1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_harbor.collection.step_places import is_collected, is_data

if TYPE_CHECKING:
    from pathlib import Path

    from scratch_project import Project

TASK = json.dumps(
    [
        {"id": "up", "type": "deploy_agent", "agent_name": "a", "a2a_agent_id": "x"},
        {"id": "ask", "type": "prompt_agent", "agent_name": "a", "prompt": "hello"},
    ]
)


def step_file(project: Project, name: str, text: str = TASK) -> Path:
    return project.file(name, text)


@pytest.mark.parametrize(
    ("path", "beside", "expected"),
    [
        ("b/tasks/x.json", "b/envs/", True),
        ("b/tasks/x.json", "b/agents/", True),
        ("b/tasks/x.json", "b/artifacts/", True),
        ("b/tasks/x.json", "b/aliases.toml", True),
        ("b/tasks/x.json", "b/skills/", False),
        ("b/tasks/deep/x.json", "b/envs/", False),
        ("b/other/x.json", "b/envs/", False),
        ("b/tasks/x.toml", "b/envs/", False),
        ("x.task.json", "", True),
    ],
)
def test_the_usual_places(tmp_path, path, beside, expected):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if beside.endswith("/"):
        (tmp_path / beside).mkdir(parents=True)
    elif beside:
        (tmp_path / beside).touch()
    assert is_collected(file, (), tmp_path) is expected


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("evals/a/x.json", "*.json", True),
        ("evals/a/x.json", "evals/*.json", True),  # * spans folders
        ("evals/a/x.json", "a/*.json", False),  # from the root directory
        ("x.task.json", "evals/*.json", False),  # patterns replace the usual places
    ],
)
def test_patterns_of_the_project(tmp_path, path, pattern, expected):
    assert is_collected(tmp_path / path, (pattern,), tmp_path) is expected


def test_artifacts_of_a_bundle_are_data(tmp_path):
    (tmp_path / "b/artifacts").mkdir(parents=True)
    (tmp_path / "other/artifacts").mkdir(parents=True)
    (tmp_path / "b/tasks").mkdir()
    assert is_data(tmp_path / "b/artifacts")
    assert not is_data(tmp_path / "other/artifacts")
    assert not is_data(tmp_path / "b/tasks")


def test_items_and_their_ids(project: Project):
    step_file(project, "bundle/tasks/reply.json")
    step_file(project, "bundle/tasks/other.json")
    project.file("bundle/aliases.toml", "")
    step_file(project, "loose.task.json")
    step_file(project, "data/x.json", "{}")
    assert project.ids() == [
        "bundle/tasks/other.json::other",
        "bundle/tasks/reply.json::reply",
        "loose.task.json::loose",
    ]
    assert project.ids("bundle/tasks/reply.json") == ["bundle/tasks/reply.json::reply"]
    assert project.ids("bundle/tasks/reply.json::reply") == [
        "bundle/tasks/reply.json::reply"
    ]
    assert project.ids("-k", "reply") == ["bundle/tasks/reply.json::reply"]
    assert project.ids("-m", 'harbor(task="other")') == [
        "bundle/tasks/other.json::other"
    ]
    assert project.ids("--harbor-attempts", "2", "-k", "reply") == [
        "bundle/tasks/reply.json::reply[1]",
        "bundle/tasks/reply.json::reply[2]",
    ]


def test_the_ini_key_names_other_places(project: Project):
    step_file(project, "evals/one.json")
    step_file(project, "loose.task.json")
    assert project.ids("-o", "harbor_step_files=evals/*.json") == [
        "evals/one.json::one"
    ]


def test_an_eval_that_is_named_collects_its_tasks(project: Project):
    for name in ("reply", "refund", "other"):
        step_file(project, f"b/tasks/{name}.json")
    project.file("b/evals/nightly.toml", 'tasks = ["reply", "other"]')
    project.file("b/evals/bad.toml", 'tasks = ["replay"]')
    project.file("b/aliases.toml", "")
    every = [f"b/tasks/{name}.json::{name}" for name in ("other", "refund", "reply")]
    assert project.ids("b") == every
    assert project.ids("b/evals/nightly.toml") == [every[2], every[0]]
    assert project.ids("b/evals/nightly.toml", "-k", "other") == [every[0]]
    result = project.run("b/evals/bad.toml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "evals/bad.toml: tasks[[]0]: no task 'replay' in tasks/ (did you mean 'reply'[?])"
        ]
    )


def test_artifacts_are_not_collected(project: Project):
    step_file(project, "b/tasks/t.json")
    project.file("b/artifacts/code/test_planted.py", "raise SystemExit('planted')")
    assert project.ids("b") == ["b/tasks/t.json::t"]


def test_a_broken_file_hides_nothing(project: Project):
    step_file(project, "a.task.json", "[{]")
    step_file(project, "b.task.json", json.dumps([{"id": "x", "type": "prompt_agnt"}]))
    step_file(project, "c.task.json")
    result = project.run("--collect-only", "-q")
    assert [line for line in result.outlines if "::" in line] == [
        "a.task.json::a",
        "b.task.json::b",
        "c.task.json::c",
    ]
    result = project.run("a.task.json", "b.task.json")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*a.task.json*", "*prompt_agent*"])
    assert "Traceback" not in str(result.stdout)


@pytest.mark.slow
def test_collecting_imports_no_protocol(project: Project):
    step_file(project, "a.task.json")
    project.file(
        "conftest.py",
        """
import sys
def pytest_collection_finish():
    loaded = {name.partition(".")[0] for name in sys.modules}
    print("LOADED", sorted(loaded & {"a2a", "mcp", "openai", "httpx", "docker"}))
""",
    )
    result = project.run_apart("--collect-only", "-q", "-s")
    result.stdout.fnmatch_lines(["LOADED []"])
