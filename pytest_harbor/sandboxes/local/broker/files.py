"""Moving files in and out, done by a process that has joined the sandbox.

It has joined the mount namespace only, so no process of the agent can see or signal it, and
``/proc/self`` of the sandbox has no entry for it that a planted link could lead to.
Nothing is opened through a link whose place the agent chose, and nothing blocks: FIFOs and
devices are never opened for reading.
"""

# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH112, PTH119, PTH120, PTH208, PTH211
# All of it goes by descriptor and system call; nothing here is a Path.

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_harbor.sandboxes.local.broker import wire
from pytest_harbor.sandboxes.transfer import is_excluded

DEEPEST = 200
"""Levels of folders that a download follows; each holds one descriptor."""
_EMPTYING_ROUNDS = 20
_BLOCKED = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512
# Names of users and groups would come from the sandbox's name service.
tarfile.pwd = tarfile.grp = None  # type: ignore[attr-defined]


def put(
    archive: int, folders: Sequence[str], empty: Sequence[tuple[str, int]]
) -> wire.Message:
    """Empty folders, then unpack an archive over ``/``. Returns the reply."""
    where = ""
    try:
        for where, mode in empty:
            empty_folder(where, mode)
        for where in folders:
            _make_folders(where)
        with os.fdopen(archive, "rb", closefd=False) as source:
            source.seek(0)
            with tarfile.open(fileobj=source, mode="r:") as tar:
                for member in tar:
                    where = f"/{member.name}"
                    _unpack(archive, member, where)
    except OSError as error:
        text = f"{where}: {error.strerror or error}"
        return {"error": text, "blocked": error.errno in _BLOCKED}
    return {"ok": True}


def _unpack(archive: int, member: tarfile.TarInfo, path: str) -> None:
    _make_folders(os.path.dirname(path))
    if member.isdir():
        if not os.path.isdir(path):
            os.mkdir(path, member.mode)
            _give(member, path)
            os.chmod(path, member.mode)  # whatever the umask
        return
    # Made beside its place and moved there: whoever puts something in the place at the
    # same moment, another upload or the agent, is replaced and not in the way.
    made = f"{os.path.dirname(path)}/.incoming-{os.urandom(8).hex()}"
    try:
        if member.issym():
            os.symlink(member.linkname, made)
            _give(member, made)
        else:
            _write(archive, member, made)
        os.rename(made, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def _write(archive: int, member: tarfile.TarInfo, path: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(path, flags, 0o600)
    try:
        _copy(archive, member.offset_data, target, member.size)
        if member.uid or member.gid:
            os.fchown(target, member.uid, member.gid)
        os.fchmod(target, member.mode)
    finally:
        os.close(target)


def _give(member: tarfile.TarInfo, path: str) -> None:
    if member.uid or member.gid:
        os.chown(path, member.uid, member.gid, follow_symlinks=False)


def _make_folders(path: str) -> None:
    if os.path.isdir(path):
        return
    _make_folders(os.path.dirname(path))
    os.mkdir(path, 0o755)


def _copy(source: int, offset: int, target: int, size: int) -> int:
    """Copy up to ``size`` bytes; returns how many there were."""
    done = 0
    while done < size:
        count = os.sendfile(target, source, offset + done, min(size - done, 1 << 24))
        if count == 0:
            break
        done += count
    return done


def empty_folder(path: str, mode: int) -> None:
    """Make ``path`` an empty folder of root, whatever is there or above it.

    Raises:
        OSError: something came back or cannot be removed.
    """
    parent = os.open("/", _FOLDER)
    *above, name = path.strip("/").split("/")
    try:
        for part in above:
            inner = _real_folder(parent, part)
            os.close(parent)
            parent = inner
        _replace_folder(parent, name, mode)
    finally:
        os.close(parent)


def _real_folder(parent: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)
    os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def _replace_folder(parent: int, name: str, mode: int) -> None:
    """A new folder where possible: whoever holds the old one cannot write to it."""
    remove(parent, name)
    # It may still exist: a mount point is emptied, but cannot be removed.
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
    folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        os.fchown(folder, 0, 0)
        os.fchmod(folder, mode)
        if left := os.listdir(folder):
            raise OSError(errno.ENOTEMPTY, f"{left[0]!r} survived the emptying")
    finally:
        os.close(folder)


def remove(parent: int, name: str) -> None:
    """Remove a file or a whole tree; a mount point is emptied and stays.

    Folders are moved up before they are emptied, so that no depth of nesting
    matters, and every step goes by descriptor, never through a link.
    """
    for _ in range(_EMPTYING_ROUNDS):
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            pass
        else:
            return
        if _remove_folder(parent, name):
            return
    raise OSError(errno.ENOTEMPTY, "something keeps coming back")


def _remove_folder(parent: int, name: str) -> bool:
    try:
        remove_content(parent, name)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:  # somebody else removes too, all of it or a part
        return False
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            return False
        if error.errno != errno.EBUSY:
            raise
    return True


def remove_content(parent: int, name: str) -> None:
    """Empty a folder. Raises OSError: something came back, or it is no folder."""
    top = os.open(name, _FOLDER, dir_fd=parent)
    moved = 0
    try:
        while folders := _remove_files(top):
            for folder in folders:
                inner = os.open(folder, _FOLDER, dir_fd=top)
                try:
                    for deeper in _remove_files(inner):
                        moved += 1
                        place = f".removed-{moved}-{os.getpid()}"
                        os.rename(deeper, place, src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)


def _remove_files(folder: int) -> list[str]:
    """Remove what is no folder; returns the folders."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders


def read(path: str, target: int, max_bytes: int) -> wire.Message:
    """Copy the content of a file into ``target``. Returns the reply."""
    try:
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(source).st_mode):
            return {"error": "not a file"}
        _copy(source, 0, target, max_bytes)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"ok": True}


@dataclass
class _Packing:
    target: int
    exclude: tuple[str, ...]
    max_bytes: int
    max_files: int
    bytes: int = 0
    files: int = 0


class _TooMuch(Exception):
    pass


def get(
    path: str, target: int, exclude: Sequence[str], max_bytes: int, max_files: int
) -> wire.Message:
    """Write one file or folder as a tar into ``target``. Returns the reply."""
    packing = _Packing(target, tuple(exclude), max_bytes, max_files)
    name = os.path.basename(path.rstrip("/")) or "root"
    try:
        _pack(packing, path, None, name)
        os.write(target, bytes(2 * _BLOCK))
    except _TooMuch as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"ok": True}


def _pack(packing: _Packing, path: str, parent: int | None, name: str) -> None:
    facts = os.stat(path, dir_fd=parent, follow_symlinks=False)
    packing.files += 1
    if packing.files > packing.max_files:
        raise _TooMuch(f"more than {packing.max_files} files")
    info = tarfile.TarInfo(name)
    info.mode = stat.S_IMODE(facts.st_mode) & 0o777
    info.mtime = int(facts.st_mtime)
    if stat.S_ISREG(facts.st_mode):
        _pack_file(packing, path, parent, info)
    elif stat.S_ISDIR(facts.st_mode):
        info.type = tarfile.DIRTYPE
        _write_header(packing, info)
        _pack_folder(packing, path, parent, name)
    else:
        if stat.S_ISLNK(facts.st_mode):
            info.type = tarfile.SYMTYPE
            info.linkname = os.readlink(path, dir_fd=parent)
        else:  # named in the archive, so that the other side can say it was left out
            info.type = tarfile.FIFOTYPE
        _write_header(packing, info)


def _pack_file(
    packing: _Packing, path: str, parent: int | None, info: tarfile.TarInfo
) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    source = os.open(path, flags, dir_fd=parent)
    try:
        facts = os.fstat(source)
        if not stat.S_ISREG(facts.st_mode):
            return
        info.size = facts.st_size
        packing.bytes += info.size
        if packing.bytes > packing.max_bytes:
            raise _TooMuch(f"more than {packing.max_bytes} bytes")
        start = _write_header(packing, info)
        _copy(source, 0, packing.target, info.size)
        # Whatever was there by now, the member has the size that its header says.
        place = start + info.size + -info.size % _BLOCK
        os.ftruncate(packing.target, place)
        os.lseek(packing.target, place, os.SEEK_SET)
    finally:
        os.close(source)


def _pack_folder(packing: _Packing, path: str, parent: int | None, name: str) -> None:
    folder = os.open(path, _FOLDER, dir_fd=parent)
    try:
        for entry in sorted(os.listdir(folder)):
            member = f"{name}/{entry}"
            inner = member.split("/")[1:]
            if len(inner) > DEEPEST:
                info = tarfile.TarInfo(member)
                info.type = tarfile.FIFOTYPE
                _write_header(packing, info)
            elif not is_excluded(inner, packing.exclude):
                _pack(packing, entry, folder, member)
    finally:
        os.close(folder)


def _write_header(packing: _Packing, info: tarfile.TarInfo) -> int:
    """Returns where the member's data begin."""
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    os.write(packing.target, header)
    return os.lseek(packing.target, 0, os.SEEK_CUR)
