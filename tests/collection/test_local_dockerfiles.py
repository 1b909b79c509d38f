"""Tasks with a Dockerfile in a run on the local sandbox."""

from __future__ import annotations

import pytest
from scratch_project import Project

INI = """
[pytest]
filterwarnings = error
harbor_sandbox = local
harbor_local_images =
    debian:* = host
    # of a folder beside this file
    tree:* = trees/one
"""
DOCKERFILE = """
FROM debian:12
RUN cat /proc/sys/kernel/random/uuid > /once
WORKDIR /bakery
COPY recipe .
ENV OVEN=hot
VOLUME /flour
"""
SOLVE = 'cp recipe bread && test "$OVEN" = hot && test "$PWD" = /bakery'
TEST = """
cp /once /logs/verifier/once
echo "{\\"reward\\": $(test -f /bakery/bread && echo 1 || echo 0)}" > /logs/verifier/reward.json
"""


@pytest.fixture
def bakery(project: Project) -> Project:
    project.pytester.makeini(INI)
    for name in ("bread", "cake"):
        write(project, name, DOCKERFILE)
    return project


def write(project: Project, name: str, dockerfile: str, toml: str = "") -> None:
    files = {"environment/recipe": "flour", "environment/Dockerfile": dockerfile}
    if not dockerfile:
        del files["environment/Dockerfile"]
    project.task(name, toml, test=TEST, solve=SOLVE, files=files)


@pytest.mark.slow
def test_tasks_are_sound_and_share_their_layers(bakery: Project) -> None:
    result = bakery.run_apart("datasets", "--harbor-validate", "-n2")
    result.assert_outcomes(passed=4, warnings=0)
    rows = bakery.rows("rollouts.jsonl")
    assert sorted(row["reward"] for row in rows) == [0, 0, 1, 1]
    made = {path.read_text() for path in bakery.latest.rglob("verifier/once")}
    assert len(made) == 1, made
    note = "note: environment/Dockerfile: the local sandbox ignores VOLUME (line 7)"
    assert all(note in row["warnings"] for row in rows)


@pytest.mark.slow
def test_what_cannot_be_built_is_told_and_the_others_run(bakery: Project) -> None:
    write(bakery, "stages", "FROM debian:12\nCOPY --from=other /a /b\n")
    write(bakery, "unmapped", "FROM alpine:3.20\n")
    write(bakery, "failing", "FROM debian:12\nRUN echo no yeast; exit 4\n")
    write(bakery, "missing", "FROM tree:1\n")
    write(bakery, "image", "", '[environment]\ndocker_image = "python:3.13"\n')
    result = bakery.run("datasets")
    result.assert_outcomes(passed=2, errors=5)
    result.stdout.fnmatch_lines_random(
        [
            "*environment/Dockerfile, line 2: COPY --from: the local sandbox cannot do it*",
            "*line 1: FROM alpine:3.20: *add 'alpine:[*] = host'*",
            "*environment/Dockerfile, line 2: RUN echo no yeast; exit 4: ended with exit code 4",
            "*no yeast",
            f"*root file system {bakery.path}/trees/one: No such file*",
            "*docker_image = 'python:3.13': *add 'python:[*] = host'*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    # What would fail the same way again is not tried again.
    assert len(bakery.rows("rollouts_failures.jsonl")) == 5


def test_without_a_line_nothing_is_built(bakery: Project) -> None:
    bakery.pytester.makeini("[pytest]\nfilterwarnings = error\n")
    result = bakery.run("datasets/bread", "--harbor-sandbox=local")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*does not build images unless harbor_local_images*"])


@pytest.mark.parametrize("value", ["debian:12", "debian:* =", "= host"])
def test_a_line_that_is_none(bakery: Project, value: str) -> None:
    result = bakery.run("datasets/bread", "-o", f"harbor_local_images={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*harbor_local_images: expected pattern = target*"])
