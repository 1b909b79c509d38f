"""A registry on loopback that serves one image, as well or as badly as a test wants.

It speaks as much of the Docker Registry HTTP API v2 as a pull needs: manifests and blobs. The
daemon accepts plain HTTP from 127.0.0.0/8.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import secrets
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from docker_images import static

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
REPOSITORY = "tests/shell"


@dataclass
class Registry:
    """``trouble`` says per kind (``manifests``, ``blobs``) what is done before an answer."""

    port: int
    image: Image
    trouble: dict[str, Callable[[Handler], bool]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The image's name for a pull; its tag is new in each test."""
        return f"127.0.0.1:{self.port}/{REPOSITORY}:{self.image.tag}"


class Image:
    """busybox with a file that no other image has."""

    def __init__(self) -> None:
        self.tag = secrets.token_hex(8)
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as tar:
            for program in ("busybox", "sh"):
                if program == "busybox":
                    tar.add(static("busybox"), "bin/busybox")
                    continue
                link = tarfile.TarInfo(f"bin/{program}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
            info = tarfile.TarInfo("unique")
            info.size = len(self.tag)
            tar.addfile(info, io.BytesIO(self.tag.encode()))
        layer = gzip.compress(plain.getvalue(), compresslevel=1)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ["PATH=/bin"], "WorkingDir": "/app"},
                "rootfs": {"type": "layers", "diff_ids": [_digest(plain.getvalue())]},
                "history": [{"created_by": "a test"}],
            }
        ).encode()
        self.blobs = {_digest(blob): blob for blob in (layer, config)}
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _descriptor(CONFIG, config),
                "layers": [_descriptor(LAYER, layer)],
            }
        ).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _descriptor(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(data), "digest": _digest(data)}


class Handler(BaseHTTPRequestHandler):
    """One connection of the daemon."""

    protocol_version = "HTTP/1.1"
    registry: ClassVar[Registry]

    def do_GET(self) -> None:
        kind = self.path.split("/")[-2] if self.path != "/v2/" else "v2"
        self.registry.asked[kind] += 1
        if (trouble := self.registry.trouble.get(kind)) and trouble(self):
            return
        image = self.registry.image
        reference = self.path.rpartition("/")[2]
        if kind == "v2":
            self.answer(200, b"{}", "application/json")
        elif kind == "manifests" and reference in (image.tag, _digest(image.manifest)):
            self.answer(200, image.manifest, MANIFEST)
        elif kind == "blobs" and reference in image.blobs:
            self.answer(200, image.blobs[reference], "application/octet-stream")
        else:
            self.fail(404, "MANIFEST_UNKNOWN", "manifest unknown")

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def answer(self, status: int, body: bytes, kind: str) -> None:
        """Send a whole answer."""
        self.start(status, body, kind)
        if self.command != "HEAD":
            self.wfile.write(body)

    def start(self, status: int, body: bytes, kind: str) -> None:
        """Send the head of an answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", _digest(body))
        self.end_headers()

    def fail(self, status: int, code: str, message: str) -> bool:
        """Send an error of the registry's own form."""
        errors = {"errors": [{"code": code, "message": message}]}
        self.answer(status, json.dumps(errors).encode(), "application/json")
        return True

    def hang_up(self) -> bool:
        """Cut the connection without an answer."""
        self.close_connection = True
        self.connection.close()
        return True

    def log_message(self, *arguments: object) -> None:
        """Say nothing: the daemon tries HTTPS first."""


@contextmanager
def registry() -> Iterator[Registry]:
    """A registry that serves its image well, until the test gives it ``trouble``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    found = Registry(server.server_address[1], Image())
    handler = type("OneHandler", (Handler,), {"registry": found})
    server.RequestHandlerClass = handler
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def cut_once(handler: Handler) -> bool:
    """Send half a blob the first time, then cut the connection."""
    if handler.registry.asked["blobs"] > 1:
        return False
    body = max(handler.registry.image.blobs.values(), key=len)
    handler.start(200, body, "application/octet-stream")
    handler.wfile.write(body[: len(body) // 2])
    handler.wfile.flush()
    return handler.hang_up()


def slowly(may_end: threading.Event) -> Callable[[Handler], bool]:
    """A blob that comes a little at a time, and whole only once ``may_end`` is set."""

    def trickle(handler: Handler) -> bool:
        reference = handler.path.rpartition("/")[2]
        body = handler.registry.image.blobs[reference]
        if len(body) < 10_000:
            return False
        handler.start(200, body, "application/octet-stream")
        handler.wfile.write(body[:-1000])
        handler.wfile.flush()
        deadline = time.monotonic() + 60
        while not may_end.wait(0.02) and time.monotonic() < deadline:
            pass
        handler.wfile.write(body[-1000:])
        return True

    return trickle
