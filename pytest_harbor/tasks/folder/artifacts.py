"""Which paths a turn collects, and where they go (spec 3.10, 7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_harbor.tasks.folder.artifact_paths import (
    ARTIFACTS_FOLDER,
    mirrored,
    normal_source,
)
from pytest_harbor.tasks.folder.model import MAIN_SERVICE, ArtifactConfig
from pytest_harbor.tasks.folder.plan_types import ArtifactPlan, Origin


def artifact_plans(
    task: Iterable[ArtifactConfig], step: Iterable[ArtifactConfig] = ()
) -> tuple[ArtifactPlan, ...]:
    """A turn's artifacts in the order of collection: ``main``'s, then the sidecars'.

    ``/logs/artifacts`` of ``main`` comes first, unless an entry declares it (with an
    ``exclude``, say) and so takes its place.
    """
    declared = [*_plans(task, "task"), *_plans(step, "step")]
    if not any(map(_is_convention, declared)):
        convention = ArtifactPlan(
            source=ARTIFACTS_FOLDER,
            destination=mirrored(ARTIFACTS_FOLDER),
            origin="convention",
        )
        declared.insert(0, convention)
    return tuple(sorted(declared, key=lambda entry: entry.service != MAIN_SERVICE))


def _plans(entries: Iterable[ArtifactConfig], origin: Origin) -> Iterator[ArtifactPlan]:
    for entry in entries:
        yield ArtifactPlan(
            source=entry.source,
            destination=mirrored(entry.destination or entry.source),
            exclude=entry.exclude,
            service=entry.service,
            origin=origin,
        )


def _is_convention(entry: ArtifactPlan) -> bool:
    return (
        entry.service == MAIN_SERVICE
        and normal_source(entry.source, None) == ARTIFACTS_FOLDER
    )
