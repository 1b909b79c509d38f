"""Files into and out of a container, by the daemon and not by programs in it.

The daemon unpacks an archive from outside the container, so nothing that an agent
put in the place of ``rm`` or ``tar`` has a say. Emptying uses a property of that unpacking:
a member that is no folder replaces a folder with all that is below it, and a folder replaces
a file. An empty file followed by a folder of the same name leaves a fresh folder, whatever
was there before.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Any, cast

import docker
import requests

from pytest_harbor.sandboxes.docker.client import NOT_FOUND, DaemonError, checked
from pytest_harbor.sandboxes.transfer import pack, unpack
from pytest_harbor.sandboxes.transfer_types import (
    NOT_THERE,
    Download,
    Downloaded,
    TransferLimits,
    Upload,
)

ARTIFACTS = "/logs/artifacts"
OPEN_FOLDERS = ("/logs/agent", "/logs/verifier", ARTIFACTS)
"""Folders that every user of the sandbox may write to."""

_LOGS = "/logs"
_CHUNK = 1024 * 1024
_GO_MODE_FOLDER = 1 << 31
_GO_MODE_SYMLINK = 1 << 27
_BLOCKED = ("cannot overwrite", "not a directory", "is a directory", "file exists")


def split(
    uploads: Sequence[Upload], empty: Sequence[str]
) -> tuple[list[Upload], list[Upload]]:
    """Uploads that go into emptied folders, and the others.

    Only the others may meet something that is in their way.
    """
    folders = tuple(folder.rstrip("/") for folder in empty)
    fresh = [
        upload
        for upload in uploads
        if upload.target in folders
        or upload.target.startswith(tuple(f"{folder}/" for folder in folders))
    ]
    return fresh, [upload for upload in uploads if upload not in fresh]


def put(
    client: docker.APIClient,
    container: str,
    uploads: Sequence[Upload],
    *,
    empty: Sequence[str] = (),
    folders: Sequence[str] = (),
) -> int:
    """Make ``folders``, empty ``empty``, and copy ``uploads`` in: one request.

    Returns the time, in seconds, that the folders carry.

    Raises:
        DaemonError: refused; see :func:`is_blocked`.
        TransferFailed: a source on the host cannot be read.
    """
    now = int(time.time())
    head = _head(empty, folders, now)
    with pack(uploads) as stream:
        response = client.put(
            _url(client, container),
            params={"path": "/", "noOverwriteDirNonDir": "0" if empty else "1"},
            data=_body(head, stream),
        )
    checked(response).close()
    return now


def may_reach(target: str, folder: str) -> bool:
    """True when an upload to ``target`` may write into ``folder``."""
    one, other = f"{target.rstrip('/')}/", f"{folder.rstrip('/')}/"
    return one.startswith(other) or other.startswith(one)


def is_blocked(text: str) -> bool:
    """True when the daemon's message says that something is in the way."""
    return any(phrase in text.lower() for phrase in _BLOCKED)


def get(
    client: docker.APIClient,
    container: str,
    wanted: Download,
    limits: TransferLimits | None,
    *,
    made_at: int | None = None,
) -> Downloaded:
    """Copy one file or folder out. A link as the source is followed in the container.

    A folder that was made empty at ``made_at`` is looked at first: while it has that
    time it has nothing in it, and a look costs a tenth of an empty archive.

    Raises:
        DaemonError: the daemon failed, or the container is gone.
        TransferFailed: the host cannot write.
    """
    try:
        if made_at is not None and _is_untouched(
            _stat(client, container, wanted.source), made_at
        ):
            wanted.target.mkdir(parents=True, exist_ok=True)
            return Downloaded(wanted.source, "empty", "directory")
        with _archive(client, container, wanted.source) as stream:
            return unpack(
                stream,
                wanted.source,
                wanted.target,
                exclude=wanted.exclude,
                limits=limits,
            )
    except DaemonError as error:
        if not _is_missing_file(error):
            raise
        return Downloaded(wanted.source, "failed", reason=NOT_THERE)


def read(
    client: docker.APIClient, container: str, path: str, max_bytes: int
) -> bytes | None:
    """The first ``max_bytes`` of a file; ``None`` when it is none. Raises DaemonError."""
    try:
        with (
            _archive(client, container, path) as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            member = tar.next()
            content = tar.extractfile(member) if member and member.isreg() else None
            return None if content is None else content.read(max_bytes)
    except tarfile.TarError as error:
        raise DaemonError(f"{path}: broken archive: {error}") from error
    except DaemonError as error:
        if not _is_missing_file(error):
            raise
        return None


def exists(client: docker.APIClient, container: str, path: str) -> bool:
    """True when there is something at ``path``. Raises DaemonError."""
    try:
        _stat(client, container, path)
    except DaemonError as error:
        if error.status == NOT_FOUND:
            return False
        raise
    return True


def _stat(client: docker.APIClient, container: str, path: str) -> dict[str, Any]:
    """What the daemon knows of a path. Raises DaemonError."""
    response = client.head(_url(client, container), params={"path": path})
    return _facts(checked(response))


def _is_untouched(facts: Mapping[str, Any], made_at: int) -> bool:
    """True when a folder has the very time that it was made with, in whole seconds."""
    try:
        mtime = str(facts["mtime"])
        when = datetime.fromisoformat(mtime.replace("Z", "+00:00")).timestamp()
        is_folder = bool(int(facts["mode"]) & _GO_MODE_FOLDER)
    except (ValueError, KeyError, TypeError):
        return False  # a fraction of a second longer than Python reads, for one
    return is_folder and "." not in mtime and int(when) == made_at


def _url(client: docker.APIClient, container: str) -> str:
    return f"{client.base_url}/v{client.api_version}/containers/{container}/archive"


@contextmanager
def _archive(
    client: docker.APIClient, container: str, path: str
) -> Iterator[IO[bytes]]:
    """The tar stream of ``path`` with links in its last component followed."""
    response = _request(client, container, path)
    if target := _link_target(response):
        response.close()
        response = _request(client, container, target)
    try:
        yield cast("IO[bytes]", response.raw)
    finally:
        # What was not read (a cap was passed) is not waited for.
        response.close()


def _request(client: docker.APIClient, container: str, path: str) -> requests.Response:
    return checked(
        client.get(
            _url(client, container),
            params={"path": path.rstrip("/") or "/"},
            headers={"Accept-Encoding": "identity"},
            stream=True,
        )
    )


def _link_target(response: requests.Response) -> str | None:
    """Where a link leads, as the daemon resolved it within the container."""
    facts = _facts(response)
    try:
        is_link = bool(int(facts["mode"]) & _GO_MODE_SYMLINK)
        return str(facts["linkTarget"]) if is_link else None
    except (ValueError, KeyError, TypeError):
        return None


def _facts(response: requests.Response) -> dict[str, Any]:
    header = response.headers.get("X-Docker-Container-Path-Stat", "")
    try:
        return dict(json.loads(b64decode(header)))
    except (ValueError, TypeError):
        return {}


def _is_missing_file(error: DaemonError) -> bool:
    text = error.text.lower()
    if "no such container" in text:
        return False
    return error.status == NOT_FOUND or "not a directory" in text


def _head(empty: Sequence[str], folders: Sequence[str], now: int) -> bytes:
    """The members that come before the uploads."""
    head = io.BytesIO()
    tar = tarfile.open(fileobj=head, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
    if any(folder.startswith(f"{_LOGS}/") for folder in (*empty, *folders)):
        # An agent may have put a link in the place of /logs itself.
        tar.addfile(_member(_LOGS, tarfile.DIRTYPE, 0o755, now))
    for folder in empty:
        tar.addfile(_member(folder, tarfile.REGTYPE, 0o600, now))
        tar.addfile(_member(folder, tarfile.DIRTYPE, _folder_mode(folder), now))
    for folder in folders:
        tar.addfile(_member(folder, tarfile.DIRTYPE, _folder_mode(folder), now))
    # Not closed: the end-of-archive mark belongs after the uploads.
    return head.getvalue()


def _folder_mode(folder: str) -> int:
    return 0o777 if folder.rstrip("/") in OPEN_FOLDERS else 0o755


def _member(path: str, kind: bytes, mode: int, now: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path.strip("/"))
    info.type = kind
    info.mode = mode
    info.mtime = now
    return info


def _body(head: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    while chunk := stream.read(_CHUNK):
        yield chunk
