"""``collect_artifacts``: files of an agent's sandbox, kept in the object store (spec 9)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from pytest_harbor.errors import StepError
from pytest_harbor.events import Json
from pytest_harbor.graphs.collecting import (
    Caps,
    Harvest,
    Taken,
    is_url,
    names_below,
    take_all,
    take_named,
    wanted,
)
from pytest_harbor.graphs.context import Change, Put
from pytest_harbor.graphs.targets import sandbox_of
from pytest_harbor.graphs.universes import (
    FileArtifact,
    Universe,
    file_artifact,
    file_key,
    save_universe,
)
from pytest_harbor.sandboxes.transfer_types import TransferLimits
from pytest_harbor.tasks.steps.model import CollectArtifacts

if TYPE_CHECKING:
    from pytest_harbor.graphs.steps.api import StepRun
    from pytest_harbor.sandboxes.api import Sandbox
    from pytest_harbor.sandboxes.output import Masker

_WRITERS: Final = 8
"""Objects that are stored at the same time: a store may be far away."""


async def collect_artifacts(step: CollectArtifacts, run: StepRun) -> None:
    """Take files out of an agent's sandbox and write what was collected.

    Raises:
        NotDeployed: no agent of that name.
        StepError: the agent has no sandbox; or files were named and none could be
            taken, in which case the context is written first.
        SandboxLost: its sandbox is gone.
        TransferFailed: nothing can be copied out of it.
    """
    sandbox = sandbox_of(run.context.agent(step.agent_name), run)
    paths = _paths(step, run)
    with tempfile.TemporaryDirectory(prefix="pytest-harbor-collect-") as folder:
        harvest = await _harvest(step, run, sandbox, paths, Path(folder))
        for warning in harvest.warnings:
            run.warn(warning)
        taken = await anyio.to_thread.run_sync(_masked, harvest.taken, run.masker)
        collected, universe = await _store(step, run, taken)
    changes: list[Change] = [_entry(step, collected, universe)]
    is_failure = not collected and any(not is_url(path) for path in paths)
    hint: list[str] = []
    if not collected:
        if is_failure:
            hint = await names_below(sandbox, step.base_path)
        files: Json = list(hint)
        produced: Json = {
            "step_id": step.id,
            "base_path": step.base_path,
            "files": files,
        }
        changes.append(Put("collect_produced_files", produced))
    run.write(*changes)
    if is_failure:
        reasons = "; ".join(harvest.warnings)
        there = f". Files below it: {', '.join(hint[:8])}" if hint else ""
        raise StepError(
            f"none of the named files could be collected from {step.agent_name}'s "
            f"{step.base_path}: {reasons}{there}"
        )


def _paths(step: CollectArtifacts, run: StepRun) -> tuple[str, ...]:
    """The step's entries, or those that the seed has instead."""
    seed = run.context.metadata.get("seed")
    value = seed.get(step.artifacts_key) if isinstance(seed, dict) else None
    if value is None:
        return step.artifact_paths
    entries = (entry.strip() for entry in str(value).split(","))
    return tuple(entry for entry in entries if entry)


async def _harvest(
    step: CollectArtifacts,
    run: StepRun,
    sandbox: Sandbox,
    paths: Sequence[str],
    folder: Path,
) -> Harvest:
    settings = run.settings
    caps = Caps(settings.max_collect_file_bytes, settings.max_collect_bytes)
    if not paths:
        exclude = frozenset(step.exclude_basenames)
        harvest = await take_all(sandbox, step.base_path, exclude, folder / "all", caps)
    else:
        limits = TransferLimits(max_bytes=caps.step_bytes)
        decided = wanted(step.base_path, paths)
        harvest = Harvest()
        if decided.entries:
            harvest = await take_named(
                sandbox, decided.entries, step.base_path, folder, limits
            )
        harvest.warnings += [f"{entry} {why}" for entry, why in decided.refused.items()]
    return _within(harvest, caps)


def _within(harvest: Harvest, caps: Caps) -> Harvest:
    """The files that keep the caps, as they were copied; for the others a warning."""
    problems = caps.problems((one.written, one.size) for one in harvest.taken)
    kept = [one for one in harvest.taken if one.written not in problems]
    warnings = [f"{written} {why}" for written, why in problems.items()]
    return Harvest(kept, harvest.warnings + warnings)


def _masked(taken: Sequence[Taken], masker: Masker) -> list[Taken]:
    """The files as they may be kept: an agent may have written its keys into them."""
    masked = []
    for one in taken:
        file = one.file.resolve()  # of a link inside: what it leads to
        masker.file(file)
        masked.append(
            replace(
                one,
                written=masker.text(one.written),
                name=masker.text(one.name),
                file=file,
                size=file.stat().st_size,
            )
        )
    return masked


async def _store(
    step: CollectArtifacts, run: StepRun, taken: Sequence[Taken]
) -> tuple[dict[str, str], Universe | None]:
    """Store files; returns the URL of each entry, and the universe if there is any."""
    universe_id = f"{run.context.instance_id}/{step.id}{step.universe_id_suffix}"
    stored: dict[str, FileArtifact] = {}
    limiter = anyio.Semaphore(_WRITERS)

    async def put(one: Taken) -> None:
        key = file_key(universe_id, run.execution, one.name)
        async with limiter:
            try:
                url = await run.store.put(key, one.file)
            except (OSError, ValueError) as error:
                run.warn(f"{one.written} cannot be stored: {error}")
                return
        stored[one.written] = file_artifact(
            universe_id, one.name, object_url=url, size=one.size, mode=one.mode
        )

    async with anyio.create_task_group() as group:
        for one in taken:
            group.start_soon(put, one)
    in_order = [one.written for one in taken if one.written in stored]
    if not in_order:
        return {}, None
    universe = Universe(
        universe_id, run.execution, tuple(stored[entry] for entry in in_order)
    )
    await save_universe(run.store, universe)
    return {entry: stored[entry].object_url for entry in in_order}, universe


def _entry(
    step: CollectArtifacts, collected: dict[str, str], universe: Universe | None
) -> Put:
    artifacts: dict[str, Json] = dict(collected)
    value: Json = {
        "artifacts": artifacts,
        "file_artifact_universe": None if universe is None else universe.reference(),
    }
    return Put("collected_artifacts", step.id, value)
