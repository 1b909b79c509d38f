"""What a Compose file may say of a build: each part of it makes another image."""

from __future__ import annotations

import tarfile

import anyio
import pytest

from pytest_harbor.sandboxes.docker.build import Builder, Recipe, build
from pytest_harbor.sandboxes.docker.context import BuildSource, archive, image_tag


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM a\n")
    (folder / "Dockerfile.b").write_text("FROM b\n")
    (folder / "word").write_text("word")
    (tmp_path / "Dockerfile.c").write_text("FROM c\n")
    return folder


def test_every_part_counts(folder, tmp_path):
    sources = [
        BuildSource(folder),
        BuildSource(folder, dockerfile=folder / "Dockerfile.b"),
        BuildSource(folder, dockerfile=tmp_path / "Dockerfile.c"),
        BuildSource(folder, inline="FROM c\nRUN x\n"),
        BuildSource(folder, args=(("A", "1"),)),
        BuildSource(folder, args=(("A", "2"),)),
        BuildSource(folder, target="first"),
        BuildSource(folder, platform="linux/arm64"),
    ]
    assert len({image_tag(source, "x") for source in sources}) == len(sources)


def test_the_ordinary_name_is_nothing_special(folder):
    named = BuildSource(folder, dockerfile=folder / "Dockerfile")
    assert image_tag(named, "x") == image_tag(BuildSource(folder), "x")


def test_a_dockerfile_outside_of_the_context_counts_with_its_text(folder, tmp_path):
    source = BuildSource(folder, dockerfile=tmp_path / "Dockerfile.c")
    before = image_tag(source, "x")
    (tmp_path / "Dockerfile.c").write_text("FROM d\n")
    assert image_tag(source, "x") != before


@pytest.mark.parametrize(
    ("fields", "name", "text"),
    [
        ({}, "Dockerfile", b"FROM a\n"),
        ({"dockerfile": "context/Dockerfile.b"}, "Dockerfile.b", b"FROM b\n"),
        ({"dockerfile": "Dockerfile.c"}, ".pytest-harbor.Dockerfile", b"FROM c\n"),
        ({"inline": "FROM x\n"}, ".pytest-harbor.Dockerfile", b"FROM x\n"),
    ],
)
def test_the_archive_has_the_dockerfile(folder, tmp_path, fields, name, text):
    if "dockerfile" in fields:
        fields["dockerfile"] = tmp_path / fields["dockerfile"]
    content, dockerfile = archive(BuildSource(folder, **fields))
    with content, tarfile.open(fileobj=content) as tar:
        assert dockerfile == name
        assert tar.extractfile(name).read() == text
        assert tar.extractfile("word").read() == b"word"


def test_how_buildkit_is_told(folder, tmp_path, monkeypatch):
    """Values are no arguments, but none may set a variable that the command reads."""
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\ncd {tmp_path}\nfor word; do echo "$word"; done > argv\nenv > env\n'
        "cat > stdin\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("OURS", "host")
    args = {"TOKEN": "sesame", "DOCKER_HOST": "tcp://x", "LD_PRELOAD": "y", "OURS": "z"}
    source = BuildSource(
        folder, inline="FROM x\n", args=tuple(args.items()), target="t", platform="p/q"
    )
    recipe = Recipe(source, "tag:1")
    anyio.run(build, None, Builder((str(docker), "build")), recipe, None)
    argv = (tmp_path / "argv").read_text().split()
    env = (tmp_path / "env").read_text().splitlines()
    assert "sesame" not in " ".join(argv)
    assert "TOKEN=sesame" in env
    assert {"TOKEN", "DOCKER_HOST=tcp://x", "LD_PRELOAD=y", "OURS=z"} <= set(argv)
    assert "OURS=host" in env
    assert not {"DOCKER_HOST=tcp://x", "LD_PRELOAD=y"} & set(env)
    assert argv[argv.index("--target") + 1] == "t"
    assert argv[argv.index("--file") + 1] == "-"
    assert argv[-1] == str(folder)
    assert (tmp_path / "stdin").read_text() == "FROM x\n"
