"""examples/docker, with the base images exchanged for one made on the spot."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "docker"
BASE = "debian:bookworm-slim"
WITH_SERVICES = "ice-cream-stand"


INSTALLS_REDIS = re.compile(r"RUN apt-get .*redis.*\n")


@pytest.fixture
def examples(tmp_path, docker_image, redis_image):
    """A copy of the examples that needs no registry and no package."""
    copy = tmp_path / "docker"
    shutil.copytree(EXAMPLES, copy)
    changed = 0
    for path in [*copy.rglob("Dockerfile"), *copy.rglob("task.toml")]:
        text = path.read_text()
        image = redis_image if INSTALLS_REDIS.search(text) else docker_image
        path.write_text(INSTALLS_REDIS.sub("", text).replace(BASE, image))
        changed += BASE in text
    assert changed == 9
    return copy


def validated(run_pytest, folders):
    """Run the reference solution and no solution at all of each."""
    run = run_pytest(*folders, "--harbor-validate")
    assert run.code == 0, run.output
    names = {f"{path.name}[{agent}]" for path in folders for agent in ("oracle", "nop")}
    assert names <= set(run.cases)
    for name in names:  # steps have rows too, without a sandbox of their own
        assert run.properties(name)["harbor.sandbox"] == "docker"
    return run


@pytest.mark.docker
@pytest.mark.slow
def test_the_examples_are_sound(examples, run_pytest):
    tasks = {path.parent for path in examples.glob("*/task.toml")}
    run = validated(run_pytest, sorted(tasks - {examples / WITH_SERVICES}))
    assert run.properties("locked-room[oracle]")["harbor.verifier_mode"] == "separate"
    assert run.properties("coffee-bar[oracle]")["harbor.verifier_mode"] == "mixed"
    steps = {f"{step}[oracle]" for step in ("01-grind", "02-brew", "03-serve")}
    assert steps <= set(run.cases)


@pytest.mark.docker
@pytest.mark.slow
def test_the_example_with_services_is_sound(compose_program, examples, run_pytest):
    run = validated(run_pytest, [examples / WITH_SERVICES])
    stand = run.properties(f"{WITH_SERVICES}[oracle]")
    assert stand["harbor.verifier_mode"] == "separate"
    [evidence] = (run.results / "latest").resolve().glob("*oracle*/**/evidence/tally")
    assert "vanilla" in evidence.read_text().split()


def test_only_the_base_image_comes_from_a_registry():
    images = {
        image
        for path in EXAMPLES.rglob("*")
        if path.name in {"Dockerfile", "task.toml", "docker-compose.yaml"}
        for image in re.findall(
            r'^(?:FROM |docker_image = "|\s+image: )([^\s"]+)',
            path.read_text(),
            re.MULTILINE,
        )
    }
    assert images == {BASE, "${MAIN_IMAGE_NAME}"}
