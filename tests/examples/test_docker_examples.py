"""examples/docker, with the base images exchanged for one made on the spot."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "docker"
BASE = "debian:bookworm-slim"


@pytest.fixture
def examples(tmp_path, docker_image):
    """A copy of the examples that needs no registry."""
    copy = tmp_path / "docker"
    shutil.copytree(EXAMPLES, copy)
    changed = 0
    for path in [*copy.rglob("Dockerfile"), *copy.rglob("task.toml")]:
        text = path.read_text()
        path.write_text(text.replace(BASE, docker_image))
        changed += BASE in text
    assert changed == 6
    return copy


@pytest.mark.docker
def test_the_examples_are_sound(examples, run_pytest):
    run = run_pytest(examples, "--harbor-validate")
    assert run.code == 0, run.output
    tasks = sorted(path.parent.name for path in examples.glob("*/task.toml"))
    names = {f"{task}[{agent}]" for task in tasks for agent in ("oracle", "nop")}
    assert names <= set(run.cases)
    for name in names:  # steps have rows too, without a sandbox of their own
        assert run.properties(name)["harbor.sandbox"] == "docker"
    assert run.properties("locked-room[oracle]")["harbor.verifier_mode"] == "separate"
    assert run.properties("coffee-bar[oracle]")["harbor.verifier_mode"] == "mixed"
    steps = {f"{step}[oracle]" for step in ("01-grind", "02-brew", "03-serve")}
    assert steps <= set(run.cases)


def test_only_the_base_image_comes_from_a_registry():
    images = {
        image
        for path in EXAMPLES.rglob("*")
        if path.name in {"Dockerfile", "task.toml"}
        for image in re.findall(
            r'^(?:FROM |docker_image = ")([^\s"]+)', path.read_text(), re.MULTILINE
        )
    }
    assert images == {BASE}
