"""Artifacts: what is kept of the agent's work (spec 7).

Which entry may write where is decided before anything is copied (:func:`claim`), so that
all entries travel in one transfer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal, TypeAlias

from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.transfer_types import (
    NOT_THERE,
    Download,
    Downloaded,
    Upload,
)
from pytest_harbor.tasks.folder.artifact_paths import MANIFEST, protected_by
from pytest_harbor.tasks.folder.model import MAIN_SERVICE
from pytest_harbor.tasks.folder.plan_types import ArtifactPlan

FOLDER: Final = "artifacts"

NAMES_SHOWN: Final = 3
"""How many of the files that were left out a warning names."""
NAME_CHARS: Final = 60

ArtifactStatus: TypeAlias = Literal["ok", "failed", "empty", "skipped"]


@dataclass(frozen=True)
class Claim:
    """What was decided about an entry before collecting.

    ``covered_by`` is the index of an earlier entry that brings this one along;
    ``skipped`` says which earlier entry has its place.
    """

    entry: ArtifactPlan
    covered_by: int | None = None
    skipped: str = ""


@dataclass(frozen=True)
class CollectedArtifact:
    """One entry after collection; ``path`` is its place on the host.

    ``dropped`` is what was left out of a folder, as ``Downloaded.dropped``.
    """

    entry: ArtifactPlan
    path: Path
    status: ArtifactStatus
    kind: Literal["file", "directory"] | None = None
    reason: str = ""
    dropped: tuple[str, ...] = ()
    is_missing: bool = False
    """True when it failed because there is no such path."""

    def manifest_row(self) -> Mapping[str, object]:
        """The entry in ``manifest.json``: Harbor's names, ``origin`` and ``dropped``."""
        return {
            "source": self.entry.source,
            "destination": f"{FOLDER}/{self.entry.destination}",
            "type": self.kind,
            "status": self.status,
            "service": self.entry.service,
            "exclude": list(self.entry.exclude),
            "origin": self.entry.origin,
            "dropped": list(self.dropped),
        }

    @property
    def warning(self) -> str | None:
        """What a person should hear of; a missing convention folder is nothing."""
        name = f"artifact {self.entry.source}"
        if self.entry.service != MAIN_SERVICE:
            name += f" of service '{self.entry.service}'"
        if self.status in ("failed", "skipped"):
            if self.is_missing and self.entry.origin == "convention":
                return None
            return f"{name}: {self.status}: {self.reason}"
        if not self.dropped:
            return None
        paths = [_shown(item.partition(": ")[0]) for item in self.dropped[:NAMES_SHOWN]]
        more = ", ..." if len(self.dropped) > NAMES_SHOWN else ""
        return (
            f"{name}: {len(self.dropped)} left out ({', '.join(paths)}{more}): only "
            "files, folders and links inside it are kept"
        )


def _shown(path: str) -> str:
    """A name that an agent chose, which may be long and hold anything."""
    return repr(path if len(path) <= NAME_CHARS else f"...{path[-NAME_CHARS:]}")


def claim(entries: Sequence[ArtifactPlan]) -> tuple[Claim, ...]:
    """Decide, in order, which entries may write. Pure.

    The first entry to want a place gets it. A later one that would write the same or a
    nested place is skipped, unless an earlier one without excludes brings exactly that.
    """
    claims: list[Claim] = []
    for entry in entries:
        claims.append(_claim_one(entry, claims))
    return tuple(claims)


def _claim_one(entry: ArtifactPlan, earlier: Sequence[Claim]) -> Claim:
    for index, other in enumerate(earlier):
        if not other.skipped and _covers(other.entry, entry):
            return Claim(entry, covered_by=index)
    for other in earlier:
        if not other.skipped and _touch(other.entry.destination, entry.destination):
            return Claim(
                entry, skipped=f"its place is taken by artifact {other.entry.source}"
            )
    return Claim(entry)


def _covers(first: ArtifactPlan, later: ArtifactPlan) -> bool:
    if first.exclude or first.service != later.service:
        return False
    source, inner = PurePosixPath(first.source), PurePosixPath(later.source)
    if not inner.is_relative_to(source):
        return False
    place = PurePosixPath(first.destination) / inner.relative_to(source)
    return place == PurePosixPath(later.destination)


def _touch(one: str, other: str) -> bool:
    a, b = PurePosixPath(one), PurePosixPath(other)
    return a.is_relative_to(b) or b.is_relative_to(a)


class Collection:
    """The entries of one turn on their way below ``target``, one service at a time.

    What may write where is decided for all services together: they share the place.
    """

    def __init__(self, entries: Sequence[ArtifactPlan], target: Path) -> None:
        self._target = target
        self._claims = claim(entries)
        self._got: dict[int, Downloaded] = {}
        self._failures: dict[str, str] = {}

    async def fetch(
        self,
        sandbox: Sandbox,
        service: str = MAIN_SERVICE,
        *,
        also: Sequence[Download] = (),
    ) -> None:
        """Copy a service's entries, all in one transfer.

        A missing or unreadable source is a ``failed`` entry and nothing else. ``also``
        travels with them, for the caller's own use.

        Raises:
            TransferFailed, SandboxLost: as ``Sandbox.download``.
        """
        wanted = {
            index: Download(
                source=_absolute(sandbox, item.entry.source),
                target=self._target / item.entry.destination,
                exclude=item.entry.exclude,
            )
            for index, item in enumerate(self._claims)
            if _is_fetched(item, service)
        }
        if wanted or also:
            results = await sandbox.download([*wanted.values(), *also])
            self._got.update(zip(wanted, results, strict=False))

    def fail(self, service: str, reason: str) -> None:
        """Note why the entries of a service could not be fetched."""
        self._failures[service] = reason

    def finish(self) -> tuple[CollectedArtifact, ...]:
        """What came of every entry, in order; its list is written beside them."""
        collected = tuple(
            self._result(index, item) for index, item in enumerate(self._claims)
        )
        write_manifest(collected, self._target)
        return collected

    def _result(self, index: int, item: Claim) -> CollectedArtifact:
        entry, path = item.entry, self._target / item.entry.destination
        if item.skipped:
            return CollectedArtifact(entry, path, "skipped", reason=item.skipped)
        if got := self._got.get(index):
            return CollectedArtifact(
                entry,
                path,
                got.status,
                got.kind,
                got.reason,
                got.dropped,
                got.is_missing,
            )
        if reason := self._failures.get(entry.service):
            return CollectedArtifact(entry, path, "failed", reason=reason)
        if path.is_dir():
            status: ArtifactStatus = "ok" if any(path.iterdir()) else "empty"
            return CollectedArtifact(entry, path, status, "directory")
        if path.exists():
            return CollectedArtifact(entry, path, "ok", "file")
        return CollectedArtifact(
            entry, path, "failed", reason=NOT_THERE, is_missing=True
        )


def write_manifest(collected: Sequence[CollectedArtifact], target: Path) -> None:
    """Write ``manifest.json`` beside the artifacts."""
    target.mkdir(parents=True, exist_ok=True)
    rows = [item.manifest_row() for item in collected]
    (target / MANIFEST).write_text(json.dumps(rows, indent=2) + "\n")


def _is_fetched(item: Claim, service: str) -> bool:
    if item.skipped or item.covered_by is not None:
        return False
    return item.entry.service == service


def _absolute(sandbox: Sandbox, source: str) -> str:
    return str(PurePosixPath(sandbox.workdir) / source)


@dataclass(frozen=True)
class Placement:
    """How collected artifacts go into a separate verifier: one ``Sandbox.upload``."""

    uploads: tuple[Upload, ...] = ()
    empty: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def place(collected: Sequence[CollectedArtifact], workdir: str) -> Placement:
    """Put each artifact back at its source path; a folder replaces what is there.

    A sidecar's go to the same path in the verifier's sandbox, unless an earlier artifact
    is there. ``workdir`` is the agent's, which relative sources are below. Pure but for
    looking at what was collected.
    """
    uploads: list[Upload] = []
    empty: list[str] = []
    warnings: list[str] = []
    for item in collected:
        if item.status not in ("ok", "empty"):
            continue
        source = str(PurePosixPath(workdir) / item.entry.source)
        why_not = ""
        if folder := protected_by(source, workdir):
            why_not = f"it overlaps {folder}, which belongs to the runner"
        elif item.entry.service != MAIN_SERVICE and any(
            _touch(source, upload.target) for upload in uploads
        ):
            why_not = "another artifact is there"
        if why_not:
            warnings.append(
                f"artifact {item.entry.source} of service '{item.entry.service}' is not "
                f"placed in the verifier's sandbox: {why_not}"
            )
            continue
        if item.kind == "directory":
            empty.append(source)
        uploads.append(Upload(item.path, source))
    return Placement(tuple(uploads), tuple(empty), tuple(warnings))
