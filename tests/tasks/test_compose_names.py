"""Names in a Compose file: what is read of it before Compose reads it."""

from __future__ import annotations

import pytest

from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.compose_services import variable_names
from pytest_harbor.tasks.folder.load import load_task
from pytest_harbor.tasks.folder.plan import plan_episode
from task_folders import write_task


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("image: ${MAIN_IMAGE_NAME}", ["MAIN_IMAGE_NAME"]),
        ("a: $TOKEN/x\nb: ${TOKEN}", ["TOKEN"]),
        ("a: ${A:-${B:-c}}", ["A", "B"]),
        ("a: ${A:?say so} ${B+x}", ["A", "B"]),
        ("command: echo $$HOME $$$$X", []),
        ("a: $$$REAL", ["REAL"]),
        ("environment:\n  - TOKEN\n  - 'KEY'\n  - SET=1", ["TOKEN", "KEY"]),
        ("environment:\n  TOKEN:\n  SET: 1\n  url: x", ["TOKEN"]),
        ("depends_on:\n  - db\nports: ['80:80']\ncommand: [\"$1\"]", []),
    ],
)
def test_variables(text, names):
    assert list(variable_names(text)) == names


def test_the_plan_has_names_and_no_values(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", "sesame")
    task = write_task(
        tmp_path / "task",
        files={
            "environment/docker-compose.yaml": "services: {db: {image: '${TOKEN}'}}"
        },
    )
    plan = plan_episode(load_task(task), Settings(), agent="nop")
    assert plan.environment.variables == ("TOKEN",)
    assert "sesame" not in repr(plan)
