"""A clean copy of the host's ``/etc`` for the sandboxes.

Only what everybody may read is copied, and no private keys. The password files are
written anew, so that users can be added although the hashes stay at home.
"""

# ruff: noqa: PTH101, PTH102, PTH115, PTH123, PTH211
# A thousand files before the first sandbox: a Path for each doubles the time.

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

_PRIVATE_KEY = b"PRIVATE KEY-----"
_LARGEST_FILE_BYTES = 8 * 1024**2
# Hashes (written anew), the host's own environment, and names that tools look at for
# the machine's identity.
_LEFT_OUT = frozenset(
    {"shadow", "shadow-", "gshadow", "gshadow-", "environment", "environment.d", "mtab"}
)
_SHADOW_REST = "*:19000:0:99999:7:::"


def copy_etc(source: Path, target: Path) -> None:
    """Copy ``source`` (``/etc``) to the new folder ``target``."""
    _copy_folder(str(source), str(target))
    (target / "mtab").symlink_to("/proc/self/mounts")
    _write_private(target / "shadow", _shadow(target / "passwd"))
    _write_private(target / "gshadow", _gshadow(target / "group"))
    # Often a link into /run, which is the sandbox's own and empty.
    resolv = target / "resolv.conf"
    if resolv.is_symlink():
        resolv.unlink()
        if (source / "resolv.conf").is_file():
            shutil.copyfile(source / "resolv.conf", resolv)


def _copy_folder(source: str, target: str) -> None:
    os.mkdir(target)
    os.chmod(target, 0o755)  # noqa: S103  # as /etc itself
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.name not in _LEFT_OUT:
                _copy_entry(entry, f"{target}/{entry.name}")


def _copy_entry(entry: os.DirEntry[str], target: str) -> None:
    try:
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target)
            return
        facts = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            if facts.st_mode & 0o005 == 0o005:
                _copy_folder(entry.path, target)
        elif (
            stat.S_ISREG(facts.st_mode)
            and facts.st_mode & 0o004
            and facts.st_size <= _LARGEST_FILE_BYTES
        ):
            _copy_file(entry.path, target, facts.st_mode & 0o755 | 0o200)
    except OSError:
        return  # vanished meanwhile, or not for us: then not for the sandbox either


def _copy_file(source: str, target: str, mode: int) -> None:
    with open(source, "rb", buffering=0) as file:
        content = file.read()
    if _PRIVATE_KEY in content:
        return
    with open(target, "xb", buffering=0) as file:
        file.write(content)
        os.fchmod(file.fileno(), stat.S_IMODE(mode))


def _rows(path: Path) -> list[list[str]]:
    if not path.is_file():
        return []
    return [line.split(":") for line in path.read_text(errors="replace").splitlines()]


def _shadow(passwd: Path) -> str:
    return "".join(f"{row[0]}:{_SHADOW_REST}\n" for row in _rows(passwd) if row[0])


def _gshadow(group: Path) -> str:
    return "".join(f"{row[0]}:*::{row[-1]}\n" for row in _rows(group) if row[0])


def _write_private(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o640)
