"""Tar streams into and out of sandboxes, packed and unpacked with checks.

What comes out of a sandbox was made by an untrusted agent. :func:`unpack` writes only
regular files, folders and links that stay inside the target, never through a link,
and stops at a cap. Links are created last, so nothing can be written through one.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO

from pytest_harbor.errors import TransferFailed
from pytest_harbor.sandboxes.transfer_types import (
    NOT_THERE,
    Downloaded,
    TransferLimits,
    Upload,
)

_IN_MEMORY_BYTES = 8 * 1024**2
_CHUNK = 256 * 1024


def pack(uploads: Iterable[Upload]) -> IO[bytes]:
    """One tar stream of all uploads, positioned at its start.

    Member names are the absolute targets without the leading ``/``; everything is
    owned by 0:0. A target folder has no member of its own, so that an existing one
    keeps its owner and mode.

    Raises:
        TransferFailed: a source cannot be read, is no file, folder or link, or is
            a link that leaves its upload.
    """
    stream = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115
    try:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for upload in uploads:
                _pack_one(tar, upload)
    except OSError as error:
        stream.close()
        if isinstance(error, TransferFailed):
            raise
        raise TransferFailed(
            f"cannot read {error.filename or 'upload'}: {error}"
        ) from error
    stream.seek(0)
    return stream


def _pack_one(tar: tarfile.TarFile, upload: Upload) -> None:
    target = upload.target.strip("/")
    if isinstance(upload.source, bytes):
        info = _member(target, 0o755 if "" in upload.executable else 0o644)
        info.size = len(upload.source)
        tar.addfile(info, io.BytesIO(upload.source))
        return
    if upload.source.is_dir():
        for path, relative in _walk(upload.source, upload.exclude):
            _pack_path(tar, upload, path, relative, f"{target}/{relative}".strip("/"))
    else:
        _pack_path(tar, upload, upload.source, "", target)


def _walk(folder: Path, exclude: frozenset[str]) -> Iterator[tuple[Path, str]]:
    pending = [""]
    while pending:
        parent = pending.pop()
        for entry in sorted(os.scandir(folder / parent), key=lambda item: item.name):
            relative = f"{parent}/{entry.name}".lstrip("/")
            if relative in exclude:
                continue
            yield Path(entry.path), relative
            if entry.is_dir(follow_symlinks=False):
                pending.append(relative)


def _pack_path(
    tar: tarfile.TarFile, upload: Upload, path: Path, relative: str, name: str
) -> None:
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode):
        _pack_link(tar, upload, path, relative, name)
        return
    info = _member(name, _mode(upload, relative, facts.st_mode))
    info.mtime = int(facts.st_mtime)
    if stat.S_ISDIR(facts.st_mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif stat.S_ISREG(facts.st_mode):
        with path.open("rb") as content:
            info.size = os.fstat(content.fileno()).st_size
            tar.addfile(info, content)
    else:
        raise TransferFailed(f"{path} is neither a file, a folder nor a link")


def _pack_link(
    tar: tarfile.TarFile, upload: Upload, path: Path, relative: str, name: str
) -> None:
    assert isinstance(upload.source, Path)
    link = str(path.readlink())
    if not relative:  # the upload itself is a link: its content is meant
        _pack_path(tar, upload, path.resolve(strict=True), "", name)
        return
    inside = os.path.normpath(PurePosixPath(relative).parent / link)
    if link.startswith("/") or inside.startswith(".."):
        raise TransferFailed(f"{path} is a link that leaves {upload.source}")
    info = _member(name, 0o777)
    info.type = tarfile.SYMTYPE
    info.linkname = link
    tar.addfile(info)


def _mode(upload: Upload, relative: str, host_mode: int) -> int:
    if upload.modes == "keep":
        mode = stat.S_IMODE(host_mode) & 0o777
    elif stat.S_ISDIR(host_mode) or host_mode & 0o111:
        mode = 0o755
    else:
        mode = 0o644
    return mode | 0o111 if relative in upload.executable else mode


def _member(name: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = mode
    return info


DEEPEST = 200
"""Folders in each other that are copied; what lies deeper stays in the sandbox."""


_NAME_CHARS = 400
"""Of a name that is told: each of a hundred thousand may have thousands."""


@dataclass
class _Unpacking:
    """State of one :func:`unpack`."""

    target: Path
    exclude: tuple[str, ...]
    limits: TransferLimits
    files: int = 0
    folders: int = 0
    bytes: int = 0
    kind: str | None = None
    links: list[tuple[Path, str]] = field(default_factory=list)
    real: set[Path] = field(default_factory=set)
    """Folders that are there, and no links."""
    dropped: list[str] = field(default_factory=list)

    def drop(self, name: str, why: str) -> None:
        shown = name if len(name) <= _NAME_CHARS else f"...{name[-_NAME_CHARS:]}"
        self.dropped.append(f"{shown}: {why}")

    def drop_link(self, path: Path, why: str) -> None:
        self.drop(str(path.relative_to(self.target)), why)


class _CapPassed(Exception):
    """Internal: the stream brings more than the limits allow."""


def unpack(
    stream: IO[bytes],
    source: str,
    target: Path,
    *,
    exclude: Sequence[str] = (),
    limits: TransferLimits | None = None,
) -> Downloaded:
    """Write what a tar stream brings below ``target``, safely.

    The stream holds one file or folder, its first path component being that
    file's or folder's own name (as ``docker cp`` has it); a file lands at ``target``, a
    folder's content below it. A stream that passes a cap is a ``failed`` download
    with the reason; what came before stays.

    Raises:
        TransferFailed: the stream is no tar, or the host cannot write.
    """
    work = _Unpacking(target, tuple(exclude), limits or TransferLimits())
    reason = ""
    try:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                _unpack_member(tar, member, work)
    except _CapPassed as error:
        reason = str(error)
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise TransferFailed(f"{source}: broken archive: {error}") from error
    except OSError as error:
        raise TransferFailed(f"{source}: cannot write to {target}: {error}") from error
    _make_links(work)
    dropped = tuple(work.dropped)
    if reason or work.kind is None:
        why = reason or (dropped[0] if dropped else NOT_THERE)
        return Downloaded(source, "failed", None, why, dropped)
    if work.kind == "file":
        return Downloaded(source, "ok", "file", "", dropped)
    is_empty = not (work.files or work.links or dropped)
    return Downloaded(source, "empty" if is_empty else "ok", "directory", "", dropped)


def _unpack_member(
    tar: tarfile.TarFile, member: tarfile.TarInfo, work: _Unpacking
) -> None:
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if member.name.startswith("/") or ".." in parts or not parts:
        work.drop(member.name, "its name reaches outside")
        return
    inner = parts[1:]
    if len(inner) > DEEPEST:
        _count(member, work)
        work.drop("/".join(inner), "too many folders deep")
        return
    if inner and is_excluded(inner, work.exclude):
        return
    if not inner:
        _unpack_root(tar, member, work)
        return
    _count(member, work)
    member.name = "/".join(inner)
    try:
        _unpack_inner(tar, member, work.target.joinpath(*inner), work)
    except OSError as error:
        if error.errno in _NAME_ERRORS:
            work.drop(member.name, error.strerror or "bad name")
            return
        raise


# A name that the sandbox's file system allows and the host's does not.
_NAME_ERRORS = frozenset(
    {20, 21, 22, 36, 84}
)  # ENOTDIR EISDIR EINVAL ENAMETOOLONG EILSEQ


def _unpack_root(
    tar: tarfile.TarFile, member: tarfile.TarInfo, work: _Unpacking
) -> None:
    if member.isdir():
        work.kind = "directory"
        work.target.mkdir(parents=True, exist_ok=True)
    elif member.isreg():
        work.kind = "file"
        _count(member, work)
        work.target.parent.mkdir(parents=True, exist_ok=True)
        _write_file(tar, member, work.target)
    else:
        work.drop(member.name, _why_not(member))


def _unpack_inner(
    tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, work: _Unpacking
) -> None:
    if not _real_parents(path.parent, work):
        work.drop(member.name, "something else is in the place of its folder")
    elif member.isdir():
        work.folders += 1
        if not path.is_dir() or path.is_symlink():
            path.mkdir()
    elif member.isreg():
        work.files += 1
        _write_file(tar, member, path)
    elif member.issym():
        work.links.append((path, member.linkname))
    elif member.islnk():
        _copy_hard_link(member, path, work)
    else:
        work.drop(member.name, _why_not(member))


def _count(member: tarfile.TarInfo, work: _Unpacking) -> None:
    work.bytes += max(0, member.size)
    if work.bytes > work.limits.max_bytes:
        raise _CapPassed(f"more than {work.limits.max_bytes} bytes")
    count = work.files + work.folders + len(work.links) + len(work.dropped)
    if count >= work.limits.max_files:
        raise _CapPassed(f"more than {work.limits.max_files} files")


def _why_not(member: tarfile.TarInfo) -> str:
    if member.isdev():
        return "devices and FIFOs stay in the sandbox"
    return "links out stay in the sandbox"


def _real_parents(folder: Path, work: _Unpacking) -> bool:
    """Make the folders between the target and ``folder``; False if a link is in the way.

    What has been looked at is remembered: a chain of folders costs its length, not the
    square of it. Links come last and never in the place of a folder.
    """
    above: list[Path] = []
    while folder not in work.real and folder != work.target:
        above.append(folder)
        folder = folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    work.real.add(folder)
    for current in reversed(above):
        with contextlib.suppress(FileExistsError):
            current.mkdir()
        if current.is_symlink() or not current.is_dir():
            return False
        work.real.add(current)
    return True


def _write_file(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = tar.extractfile(member)
    assert content is not None
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = 0o755 if member.mode & 0o100 else 0o644
    with os.fdopen(os.open(path, flags, mode), "wb") as output:
        while chunk := content.read(_CHUNK):
            output.write(chunk)


def _copy_hard_link(member: tarfile.TarInfo, path: Path, work: _Unpacking) -> None:
    parts = [part for part in member.linkname.split("/") if part not in ("", ".")]
    first = work.target.joinpath(*parts[1:])
    inside = (
        len(parts) > 1 and ".." not in parts and not member.linkname.startswith("/")
    )
    if not inside or first.is_symlink() or not first.is_file():
        work.drop(member.name, "hard link to something outside")
        return
    if not _real_parents(first.parent, work):
        work.drop(member.name, "hard link through a link")
        return
    work.files += 1
    work.bytes += first.stat().st_size
    if work.bytes > work.limits.max_bytes:
        raise _CapPassed(f"more than {work.limits.max_bytes} bytes")
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    path.write_bytes(first.read_bytes())


def _make_links(work: _Unpacking) -> None:
    """Create the links that stay inside, and only those, however they are chained."""
    made: list[Path] = []
    for path, link in work.links:
        if link.startswith("/") or "\0" in link:
            work.drop_link(path, f"link out: {link}")
            continue
        if path.is_symlink() or path.exists() or not _real_parents(path.parent, work):
            work.drop_link(path, "something else is in its place")
            continue
        try:
            path.symlink_to(link)
        except OSError as error:
            work.drop_link(path, error.strerror or "bad link")
            continue
        made.append(path)
    top = os.path.realpath(work.target)
    for path in made:
        real = os.path.realpath(path)
        if real != top and not real.startswith(top + os.sep):
            work.drop_link(path, f"link out: {path.readlink()}")
            path.unlink()


def is_excluded(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """True when a ``tar --exclude`` pattern matches a path, given by its components.

    A pattern matches from any component on, and everything below what it matches.
    """
    path = "/".join(parts)
    return any(_exclusion(pattern).search(path) for pattern in patterns)


@lru_cache
def _exclusion(pattern: str) -> re.Pattern[str]:
    """One search of the path: every part of it by itself would cost hours of deep ones."""
    text = translate(pattern.removeprefix("./").rstrip("/"))
    return re.compile(rf"(?:\A|/){text[:-2]}(?:/|\Z)")  # without its own end
