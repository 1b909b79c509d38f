"""The same Dockerfile, built by Docker and on the local sandbox from the same files."""

from __future__ import annotations

import os

import anyio
import docker
import pytest

from pytest_harbor.sandboxes.docker.provider import DockerProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.provider import LocalProvider

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="several users need root"),
]

DOCKERFILE = r"""
ARG BASE=none
ARG TAG={image}
FROM $TAG
ARG BASE
ARG WHO=someone
ARG UNSET
ENV PATH=/usr/local/bin:/usr/bin:/bin
ENV A=1 B="two $WHO" C='raw $WHO' D=a\ b E=${{UNSET:-default}} F=${{WHO:+set}} G=$BASE
ENV A=2 H=$A
ENV OLD old  style
WORKDIR /w
COPY one .
COPY one copied
COPY one dir/
COPY o*e t?o [a-t]hree globbed/
COPY tree tree1
COPY tree/ tree2/
COPY tree/deep/../deep tree3
COPY tree1 two /w/tree1/
COPY . all/
ADD one two added/
COPY --chown=agent one own/agent
COPY --chown=agent:staff tree own/tree
COPY --chown=1234:5678 two own/number
COPY ["with space", "spaced/"]
RUN ln -s /elsewhere /w/out && mkdir /elsewhere
COPY two out/
RUN rm -r tree2/deep && echo again > tree2/new && chmod 700 dir
WORKDIR inner/$A
RUN ["sh", "-c", "echo $A $0", "exec form"]
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN echo "$B|$C|$D|$E|$F|$G|$H|$OLD|$UNSET" | tee values; echo $0 ${{BASH_VERSION:+bash}} >> values; \
    pwd >> values ; # a comment in a line
USER agent
RUN id > /tmp/id; echo $HOME >> /tmp/id; touch /home/agent/mine
"""
IGNORE = "*.log\n!keep.log\ntree/secret\n**/*.tmp\n"
SHOW = r"""
cd /w && find . /elsewhere /home /tmp | sort | while read -r f; do
  echo "$f $(stat -c '%a %u:%g %F' "$f") $(readlink "$f")"; test -f "$f" && cat "$f"
done; cd - >/dev/null; pwd; id; env | grep -E '^[A-H]=|^OLD|^PATH|^WHO' | sort
"""


@pytest.fixture
def context(tmp_path, docker_image):
    files = ["one", "two", "three", "with space", "a.log", "keep.log", "x.tmp"]
    files += ["tree/a", "tree/deep/b", "tree/deep/c.tmp", "tree/secret", "tree1"]
    for name in files:
        path = tmp_path / "environment" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
        path.chmod(0o644)
    folder = tmp_path / "environment"
    for inner in ("tree", "tree/deep"):
        (folder / inner).chmod(0o755)
    (folder / "three").chmod(0o750)
    (folder / "tree/loop").symlink_to("../tree/a")
    (folder / "tree/absolute").symlink_to("/etc/passwd")
    (folder / ".dockerignore").write_text(IGNORE)
    (folder / ".dockerignore").chmod(0o644)
    (folder / "Dockerfile").write_text(DOCKERFILE.format(image=docker_image))
    (folder / "Dockerfile").chmod(0o644)
    return folder


@pytest.fixture
def tar(tmp_path, docker_image):
    client = docker.from_env()
    try:
        container = client.containers.create(docker_image, "true")
        with (tmp_path / "tree.tar").open("wb") as file:
            for chunk in container.export():
                file.write(chunk)
        container.remove(force=True)
        yield tmp_path / "tree.tar"
        for built in client.images.list("pytest-harbor/same"):
            client.images.remove(built.id, force=True)
    finally:
        client.close()


def test_both_make_the_same_files(context, tar, docker_image):
    async def show(provider):
        spec = EnvironmentSpec(build_context=context, network="no-network")
        try:
            box = await provider.start(spec, name="same", labels={})
            try:
                return await box.exec(SHOW, timeout_seconds=60)
            finally:
                await box.stop()
        finally:
            await provider.aclose()

    local = anyio.run(show, LocalProvider(images=[(docker_image, str(tar))]))
    container = anyio.run(show, DockerProvider())
    assert container.ok, container
    assert local.stdout.splitlines() == container.stdout.splitlines()
