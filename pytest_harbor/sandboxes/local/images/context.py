"""The files of a build context: which ones an instruction means, their hash, their tar.

Nothing outside of the context is ever read: a link that is named is followed as long as it
stays inside, and links below a folder that is copied are copied as links.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final, NoReturn, Protocol

from pytest_harbor.errors import UnsupportedByProvider
from pytest_harbor.sandboxes.local.images.recipe import Copy

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE: Final = ".dockerignore"
_CHUNK: Final = 1024 * 1024
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


@dataclass(frozen=True)
class Source:
    """One file or folder that a ``COPY`` names."""

    name: str
    """Its last part, which a file has at its target."""
    path: Path
    is_folder: bool


@dataclass(frozen=True)
class Owner:
    """Whom copied files belong to."""

    uid: int = 0
    gid: int = 0


class Context:
    """A build context. ``name`` is what messages call its Dockerfile."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = Path(os.path.realpath(folder))
        self._name = name

    def sources(self, copy: Copy) -> list[Source]:
        """What an instruction copies from the context, in its order.

        Raises:
            UnsupportedByProvider: it is not there, leads out of the context, or is
                something that cannot be copied; names the line.
        """
        found = []
        for wanted in copy.sources:
            try:
                matches = self._match(wanted)
            except re.error as error:
                self._refuse(copy, f"{wanted}: not a pattern: {error.msg}")
            if not matches:
                self._refuse(
                    copy,
                    f"{wanted}: no such file in the build context {self._folder}"
                    f"{self._but_for_ignored()}",
                )
            found += [self._source(copy, match) for match in matches]
        count = len(found) + len(copy.texts)
        if count > 1 and not copy.target.endswith("/"):
            self._refuse(copy, "several sources need a target that ends in /")
        return found

    def _but_for_ignored(self) -> str:
        has_file = (self._folder / IGNORE_FILE).is_file()
        return f" (that {IGNORE_FILE} lets through)" if has_file else ""

    def _refuse(self, copy: Copy, why: str) -> NoReturn:
        raise UnsupportedByProvider(
            f"{self._name}, line {copy.line}: {copy.text}: {why}"
        )

    def _source(self, copy: Copy, relative: str) -> Source:
        path = Path(os.path.realpath(self._folder / relative))
        if not path.is_relative_to(self._folder):
            self._refuse(copy, f"{relative} is a link out of the build context")
        mode = path.lstat().st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            self._refuse(copy, f"{relative} is neither a file nor a folder")
        if copy.is_add and stat.S_ISREG(mode) and _is_archive(path):
            self._refuse(
                copy,
                f"{relative} is an archive, which the local sandbox does not unpack; "
                "COPY it and unpack it in a RUN, or use --harbor-sandbox docker",
            )
        return Source(Path(relative).name, path, stat.S_ISDIR(mode))

    def _match(self, wanted: str) -> list[str]:
        """Paths below the context that a word of an instruction means."""
        parts = [part for part in wanted.split("/") if part not in ("", ".")]
        matches = [""]
        for part in parts:
            matches = [found for above in matches for found in self._below(above, part)]
        kept = [match for match in matches if self._is_there(match)]
        return kept or ([""] if not parts else [])

    def _below(self, above: str, part: str) -> list[str]:
        prefix = f"{above}/" if above else ""
        if not re.search(r"[*?\[\\]", part):
            is_there = os.path.lexists(self._folder / prefix / part)
            return [prefix + part] if is_there else []
        pattern = _glob(part)
        folder = self._folder / prefix
        if not Path(os.path.realpath(folder)).is_relative_to(self._folder):
            return []
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208 - names are all it needs
        except OSError:
            return []
        return [prefix + name for name in names if pattern.fullmatch(name)]

    def _is_there(self, relative: str) -> bool:
        """A dangling link is not, nor what is ignored with all that is below it."""
        path = self._folder / relative
        if not path.exists():
            return False
        if not relative or not self._is_ignored(relative):
            return True
        return path.is_dir() and any(True for _ in self.members(path))

    def members(self, folder: Path) -> Iterator[tuple[str, Path, os.stat_result]]:
        """Everything below a folder that is not ignored, folders before their content.

        Raises:
            UnsupportedByProvider: a device, FIFO or socket.
        """
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - names are all it needs
            path = folder / name
            facts = path.lstat()
            is_ignored = self._is_ignored(str(path.relative_to(self._folder)))
            if stat.S_ISDIR(facts.st_mode):
                inner = list(self.members(path))
                if not is_ignored or inner:
                    yield name, path, facts
                for below, inner_path, inner_facts in inner:
                    yield f"{name}/{below}", inner_path, inner_facts
            elif is_ignored:
                continue
            elif stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode):
                yield name, path, facts
            else:
                raise UnsupportedByProvider(
                    f"{self._name}: {path} is neither a file, a folder nor a link"
                )

    def _is_ignored(self, relative: str) -> bool:
        return self._ignored is not None and self._ignored.match_file(relative)

    @cached_property
    def _ignored(self) -> GitIgnoreSpec | None:
        file = self._folder / IGNORE_FILE
        if not file.is_file():
            return None
        from pathspec import GitIgnoreSpec

        refuse_link_out(self._folder, IGNORE_FILE)
        lines = file.read_text(encoding="utf-8-sig", errors="replace").splitlines()
        patterns = [git for line in lines if (git := _as_git(line))]
        try:
            return GitIgnoreSpec.from_lines(patterns)
        except (ValueError, re.error) as error:
            raise UnsupportedByProvider(
                f"{self._folder.name}/{IGNORE_FILE}: a pattern is none: {error}"
            ) from None

    def digest(self, copy: Copy, into: _Hash) -> None:
        """Add what an instruction copies: names, modes, link targets and bytes.

        Raises:
            UnsupportedByProvider: as :meth:`sources`.
        """
        for source in self.sources(copy):
            into.update(f"\0{source.name}\0{source.is_folder}".encode(**_UTF8))
            if not source.is_folder:
                _digest_file(source.path, source.path.lstat(), into)
                continue
            for name, path, facts in self.members(source.path):
                into.update(f"\0{name}".encode(**_UTF8))
                _digest_file(path, facts, into)

    def pack(
        self, copy: Copy, target: str, *, is_folder: bool, owner: Owner
    ) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
        """Members of a tar that brings it to ``target``.

        ``is_folder`` says that files go below ``target``, under their own names.
        """
        place = target.strip("/")
        sources = self.sources(copy)
        # Those that are there stay as they are.
        for parent in reversed(PurePosixPath(place).parents[:-1]):
            yield _folder_member(str(parent), 0o755, owner), None
        if is_folder or any(source.is_folder for source in sources):
            yield _folder_member(place, 0o755, owner), None
        for source in sources:
            if source.is_folder:
                for name, path, facts in self.members(source.path):
                    inner = f"{place}/{name}".strip("/")
                    yield from _member(inner, path, facts, copy, owner)
            else:
                name = f"{place}/{source.name}" if is_folder else place
                facts = source.path.lstat()
                yield from _member(name.strip("/"), source.path, facts, copy, owner)
        for name, text in copy.texts:
            info = tarfile.TarInfo(
                (f"{place}/{name}" if is_folder else place).strip("/")
            )
            content = text.encode(**_UTF8)
            info.mode = 0o644 if copy.chmod is None else copy.chmod
            info.size, info.uid, info.gid = len(content), owner.uid, owner.gid
            yield info, io.BytesIO(content)


def refuse_link_out(folder: Path, name: str) -> None:
    """Raises UnsupportedByProvider for a file that is a link out of its context."""
    real = Path(os.path.realpath(folder / name))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise UnsupportedByProvider(
            f"{folder.name}/{name} is a link out of the build context"
        )


_UTF8: Final = {"encoding": "utf-8", "errors": "surrogateescape"}


def _digest_file(path: Path, facts: os.stat_result, into: _Hash) -> None:
    into.update(f"\0{facts.st_mode:o}\0".encode())
    if stat.S_ISLNK(facts.st_mode):
        into.update(os.fsencode(path.readlink()))
    elif stat.S_ISREG(facts.st_mode):
        size = 0
        with _open(path) as content:
            while chunk := content.read(_CHUNK):
                size += len(chunk)
                into.update(chunk)
        into.update(f"\0{size}".encode())


def _member(
    name: str, path: Path, facts: os.stat_result, copy: Copy, owner: Owner
) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    mode = stat.S_IMODE(facts.st_mode) & 0o777
    if stat.S_ISDIR(facts.st_mode):
        yield (
            _folder_member(name, mode if copy.chmod is None else copy.chmod, owner),
            None,
        )
        return
    info = tarfile.TarInfo(name)
    info.uid, info.gid = owner.uid, owner.gid
    info.mtime = int(facts.st_mtime)
    if stat.S_ISLNK(facts.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        yield info, None
        return
    info.mode = mode if copy.chmod is None else copy.chmod
    with _open(path) as content:
        info.size = os.fstat(content.fileno()).st_size
        yield info, content


def _folder_member(name: str, mode: int, owner: Owner) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    info.uid, info.gid = owner.uid, owner.gid
    return info


def _open(path: Path) -> IO[bytes]:
    """Open a file that was looked at, and nothing that took its place meanwhile."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _is_archive(path: Path) -> bool:
    with _open(path) as content:
        is_zstd = content.read(4) == _ZSTD
    try:
        return is_zstd or tarfile.is_tarfile(path)
    except (EOFError, zlib.error):  # it begins as one, and is broken
        return False


def _as_git(line: str) -> str:
    """A line of ``.dockerignore`` in git's words: patterns start at the context's root."""
    pattern = line.strip()
    if not pattern or line.startswith("#"):
        return ""
    is_exception = pattern.startswith("!")
    pattern = os.path.normpath(pattern.removeprefix("!").strip()).lstrip("/")
    if pattern in ("", "."):
        return ""
    return f"{'!' if is_exception else ''}/{pattern}"


def _glob(pattern: str) -> re.Pattern[str]:
    """Go's ``filepath.Match`` for one part of a path."""
    parts, at = [], 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            parts.append("[^/]*")
        elif char == "?":
            parts.append("[^/]")
        elif char == "[" and (end := pattern.find("]", at + 1)) > 0:
            inner = pattern[at:end].replace("\\", "\\\\")
            parts.append(f"[{inner}]")
            at = end + 1
        elif char == "\\" and at < len(pattern):
            parts.append(re.escape(pattern[at]))
            at += 1
        else:
            parts.append(re.escape(char))
    return re.compile("".join(parts))
