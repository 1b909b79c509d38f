"""Which paths are collected, in which order, and where they go (spec 3.10, 7)."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_harbor.tasks.folder.artifact_paths import protected_by
from pytest_harbor.tasks.folder.artifacts import artifact_plans
from pytest_harbor.tasks.folder.model import ArtifactConfig


def entry(source: str, **keys: Any) -> ArtifactConfig:
    return ArtifactConfig.model_validate({"source": source, **keys})


def test_the_convention_comes_first_then_the_task_then_the_step() -> None:
    plans = artifact_plans([entry("/app/a")], [entry("/app/b", exclude=["*.o"])])

    assert [(plan.source, plan.origin) for plan in plans] == [
        ("/logs/artifacts", "convention"),
        ("/app/a", "task"),
        ("/app/b", "step"),
    ]
    assert plans[2].exclude == ("*.o",)


def test_sidecars_come_after_main() -> None:
    plans = artifact_plans(
        [entry("/data", service="db"), entry("/app/a")],
        [entry("/app/b"), entry("/log", service="db")],
    )

    assert [(plan.service, plan.source) for plan in plans] == [
        ("main", "/logs/artifacts"),
        ("main", "/app/a"),
        ("main", "/app/b"),
        ("db", "/data"),
        ("db", "/log"),
    ]


@pytest.mark.parametrize("source", ["/logs/artifacts", "/logs//artifacts/"])
def test_a_declared_convention_folder_replaces_the_implicit_one(source: str) -> None:
    plans = artifact_plans([], [entry(source, exclude=["tmp"])])

    assert [(plan.source, plan.origin, plan.exclude) for plan in plans] == [
        (source, "step", ("tmp",))
    ]


def test_a_sidecars_folder_of_that_name_replaces_nothing() -> None:
    plans = artifact_plans([entry("/logs/artifacts", service="db")])

    assert [plan.origin for plan in plans] == ["convention", "task"]


@pytest.mark.parametrize(
    ("source", "destination", "place"),
    [
        ("/var/log/x", None, "var/log/x"),
        ("/var/log/", None, "var/log"),
        ("out/./report.json", None, "out/report.json"),
        ("/x", "", "x"),
        ("/x", "reports/./a", "reports/a"),
    ],
)
def test_the_destination_mirrors_the_source(
    source: str, destination: str | None, place: str
) -> None:
    config = ArtifactConfig(source=source, destination=destination)

    assert artifact_plans([config])[1].destination == place


@pytest.mark.parametrize(
    ("source", "workdir", "folder"),
    [
        ("/tests", None, "/tests"),
        ("/tests/../tests/x", None, "/tests"),
        ("//tests", None, "/tests"),
        ("/", None, "/tests"),
        ("/logs", None, "/logs/verifier"),
        ("/logs/agent/a", None, "/logs/agent"),
        ("tests", "/", "/tests"),
        ("tests", None, None),
        ("tests", "/app", None),
        ("/testsuite", None, None),
        ("/logs/artifacts", None, None),
        ("/app", None, None),
    ],
)
def test_protected_folders(
    source: str, workdir: str | None, folder: str | None
) -> None:
    assert protected_by(source, workdir) == folder
