"""An image for real CLIs: this machine's glibc, curl and CA bundle on top of the busybox image.

Made in seconds and without a registry. Agents bring the rest in their install scripts.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker
from docker.errors import ImageNotFound

from docker_images import BUSYBOX_TAG, busybox_image

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
# Loaded by name while a program runs, or asked for by the CLIs alone.
LIBRARIES = (
    "libdl.so.2",
    "libm.so.6",
    "libnss_dns.so.2",
    "libnss_files.so.2",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
    "libutil.so.1",
)
DOCKERFILE = f"FROM {BUSYBOX_TAG}\nCOPY root /\n"
_LIBRARY = re.compile(r"(/\S+) \(0x")


def agent_image() -> str:
    """Build the image once; returns its tag."""
    files = sorted(set(_files()))
    stamps = [f"{path} {Path(path).stat().st_mtime_ns}" for path in files]
    digest = hashlib.sha256("\n".join([DOCKERFILE, *stamps]).encode()).hexdigest()
    tag = f"pytest-harbor-test/agents:{digest[:16]}"
    client = docker.from_env()
    try:
        try:
            client.images.get(tag)
        except ImageNotFound:
            busybox_image()
            _build(client, tag, files)
    finally:
        client.close()
    return tag


def _build(client: docker.DockerClient, tag: str, files: list[str]) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w", dereference=True) as tar:
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(DOCKERFILE)
        tar.addfile(info, io.BytesIO(DOCKERFILE.encode()))
        for path in files:
            tar.add(path, f"root{path}")
    context.seek(0)
    client.images.build(fileobj=context, custom_context=True, tag=tag, rm=True)


def _files() -> Iterator[str]:
    yield CA_BUNDLE
    curl = shutil.which("curl")
    if curl is None:
        raise FileNotFoundError("install curl")
    yield curl
    listed = subprocess.run(["ldd", curl], capture_output=True, text=True, check=True)
    for library in _LIBRARY.findall(listed.stdout):
        yield library
        if "/libc.so" in library:
            beside = (Path(library).with_name(name) for name in LIBRARIES)
            yield from (str(path) for path in beside if path.exists())
