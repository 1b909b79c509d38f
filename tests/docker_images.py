"""Images for the tests, made from Debian packages: no registry is needed."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import docker
from docker.errors import ImageNotFound

BUSYBOX_TAG = "pytest-harbor-test/busybox:1"
REDIS_TAG = "pytest-harbor-test/redis:2"

DOCKERFILE = """\
FROM scratch
COPY bash busybox /bin/
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN mkdir -p /tmp /root /etc /usr/bin /home/agent && chmod 1777 /tmp \
 && ln -s /bin/env /usr/bin/env \
 && printf 'root:x:0:0:root:/root:/bin/sh\\nagent:x:1000:1000::/home/agent:/bin/sh\\n' > /etc/passwd \
 && printf 'root:x:0:\\nagent:x:1000:\\nstaff:x:50:agent\\n' > /etc/group \
 && chown 1000:1000 /home/agent
ENV PATH=/usr/local/bin:/usr/bin:/bin
WORKDIR /app
"""


def busybox_image() -> str:
    """Build the image of bash-static and busybox-static once; returns its tag."""
    client = docker.from_env()
    try:
        try:
            client.images.get(BUSYBOX_TAG)
        except ImageNotFound:
            _build(client)
    finally:
        client.close()
    return BUSYBOX_TAG


def _build(client: docker.DockerClient) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(DOCKERFILE)
        tar.addfile(info, io.BytesIO(DOCKERFILE.encode()))
        tar.add(static("bash-static", "bash"), "bash")
        tar.add(static("busybox"), "busybox")
    context.seek(0)
    client.images.build(fileobj=context, custom_context=True, tag=BUSYBOX_TAG, rm=True)


REDIS_PROGRAMS = {"redis-server": "redis-check-rdb", "redis-cli": "redis-cli"}
"""Each with the file of Debian's redis-tools that it is: the server goes by its name."""


def redis_image() -> str:
    """The busybox image with Debian's Redis, server and command; returns its tag."""
    client = docker.from_env()
    try:
        try:
            client.images.get(REDIS_TAG)
        except ImageNotFound:
            busybox_image()
            _build_redis(client)
    finally:
        client.close()
    return REDIS_TAG


def _build_redis(client: docker.DockerClient) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w", dereference=True) as tar:
        text = f"FROM {BUSYBOX_TAG}\nCOPY root /\nRUN mkdir /data\nCMD redis-server --protected-mode no\n"
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
        libraries = set()
        for name, file in REDIS_PROGRAMS.items():
            path = _installed(file)
            tar.add(path, f"root/usr/bin/{name}")
            done = subprocess.run(
                ["ldd", path], capture_output=True, text=True, check=True
            )
            libraries |= set(re.findall(r"(/\S+) \(0x", done.stdout))
        for library in sorted(libraries):
            tar.add(library, f"root{library}")
    context.seek(0)
    client.images.build(fileobj=context, custom_context=True, tag=REDIS_TAG, rm=True)


def _installed(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"install Debian's redis-tools ({name})")
    return Path(found)


def static(*names: str) -> Path:
    for name in names:
        if found := shutil.which(name):
            return Path(found).resolve()
    raise FileNotFoundError(
        f"install Debian's bash-static and busybox-static ({names})"
    )


PYTHON_TAG = f"pytest-harbor-test/python:{sys.implementation.cache_tag}-1"
_NOT_COPIED = re.compile(
    r"/(?:test|tests|idlelib|tkinter|turtledemo|ensurepip|lib2to3|site-packages|config-[^/]*)/"
)


def python_image() -> str:
    """The busybox image with the Python that runs the tests; returns its tag."""
    client = docker.from_env()
    try:
        try:
            client.images.get(PYTHON_TAG)
        except ImageNotFound:
            busybox_image()
            _build_python(client)
    finally:
        client.close()
    return PYTHON_TAG


def _build_python(client: docker.DockerClient) -> None:
    program = Path(sys.base_prefix, "bin", "python3").resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    files = {program, *stdlib.rglob("*")}
    files = {path for path in files if path.is_file()}
    linked = [program, *(path for path in files if path.suffix == ".so")]
    # Of the modules that a system lacks libraries for, ldd says "not found".
    done = subprocess.run(["ldd", *linked], capture_output=True, text=True, check=False)
    files |= {Path(name) for name in re.findall(r"(/\S+) \(0x", done.stdout)}
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w", dereference=True) as tar:
        text = (
            f"FROM {BUSYBOX_TAG}\nCOPY root /\nRUN ln -s {program} /usr/bin/python3\n"
        )
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
        for path in sorted(files):
            if not _NOT_COPIED.search(str(path)):
                tar.add(path, f"root{path}")
    context.seek(0)
    client.images.build(fileobj=context, custom_context=True, tag=PYTHON_TAG, rm=True)
