"""An allowlist in a run: with its image, and where that cannot be had."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def run(project, docker_image):
    """Run a task with an allowlist, its proxy being made from ``image``."""

    def run_it(image: str) -> pytest.RunResult:
        project.graded(
            "listed",
            1,
            f'[environment]\ndocker_image = "{docker_image}"\n'
            'network_mode = "allowlist"\nallowed_hosts = ["name.test"]\n',
        )
        return project.run(f"-oharbor_egress_image={image}", "-oharbor_retries=0")

    return run_it


def test_a_task_with_an_allowlist_runs(run, python_image):
    run(python_image).assert_outcomes(passed=1)


def test_without_the_image_it_is_an_error_and_nothing_is_open(run):
    result = run("127.0.0.1:1/none:1")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*network_mode = 'allowlist' needs an image with python3*127.0.0.1:1/none:1*"]
    )
