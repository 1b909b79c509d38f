"""What of a run a judge gets to see (spec 8.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pytest_harbor.errors import StepError
from pytest_harbor.graphs.context import PromptResponse, RunContext
from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.transfer_types import Upload
from pytest_harbor.tasks.steps.model import RubricsVerifier
from pytest_harbor.verification.judges.prompt import (
    Evidence,
    LoadedFiles,
    TrajectoryPlace,
    TrajectoryText,
)

if TYPE_CHECKING:
    from pytest_harbor.events import Json
    from pytest_harbor.graphs.objects import ObjectStore
    from pytest_harbor.graphs.steps.api import StepRun

TRAJECTORY_FILE: Final = "/tmp/prompt_trajectory.json"  # noqa: S108 - in a sandbox
TRAJECTORY_FOLDER: Final = "/tmp/prompt_trajectory"  # noqa: S108


@dataclass(frozen=True)
class Trajectories:
    """What the agent did, turn by turn; ``None`` where it is not known."""

    turns: tuple[bytes | None, ...] = ()

    @property
    def known(self) -> tuple[bytes, ...]:
        """The turns that are known."""
        return tuple(turn for turn in self.turns if turn is not None)

    @property
    def gap(self) -> Literal["missing", "incomplete"] | None:
        """What the verifier's entry says when not all of it is there."""
        if not self.known:
            return "missing"
        return "incomplete" if len(self.known) < len(self.turns) else None

    @property
    def as_text(self) -> TrajectoryText | None:
        """For a judge that has no sandbox: all of it inline."""
        if not self.known:
            return None
        return TrajectoryText(
            tuple(
                "(not recorded)" if turn is None else turn.decode(errors="replace")
                for turn in self.turns
            )
        )

    async def put_into(self, sandbox: Sandbox) -> TrajectoryPlace | None:
        """Copy it into a judge's sandbox: a file, or a folder with one per turn.

        Raises:
            SandboxError: as ``Sandbox.upload``.
        """
        if not self.known:
            return None
        if len(self.turns) == 1:
            await sandbox.upload([Upload(self.known[0], TRAJECTORY_FILE)])
            return TrajectoryPlace(TRAJECTORY_FILE)
        await sandbox.upload(
            [
                Upload(turn, f"{TRAJECTORY_FOLDER}/turn_{number:02}.json")
                for number, turn in enumerate(self.turns, 1)
                if turn is not None
            ],
            empty=[TRAJECTORY_FOLDER],
        )
        return TrajectoryPlace(TRAJECTORY_FOLDER, is_folder=True)


async def fetch_trajectories(
    store: ObjectStore, response: PromptResponse
) -> Trajectories:
    """The stored trajectories of a reply.

    Raises:
        StepError: one is recorded and cannot be read.
    """
    urls = response.target_agent_per_turn_trajectory_object_urls or (
        response.agent_trajectory_object_url,
    )
    turns = []
    for url in urls:
        try:
            turns.append(None if url is None else await store.get(url))
        except (OSError, ValueError) as error:  # noqa: PERF203 - a handful of turns
            raise StepError(f"cannot read the trajectory {url}: {error}") from error
    return Trajectories(tuple(turns))


def evidence_of(
    step: RubricsVerifier,
    response: PromptResponse,
    run: StepRun,
    trajectory: TrajectoryText | TrajectoryPlace | None,
    *,
    judge_name: str | None = None,
) -> Evidence:
    """All that the judge of ``step`` gets to see, secrets masked.

    ``judge_name`` is that of a deployed agent that judges.
    """
    parts = response.source_agent_per_turn_prompt_parts
    masked = run.masker.text
    return Evidence(
        reply=masked(response.response),
        prompt=None if response.prompt_text is None else masked(response.prompt_text),
        prompt_parts=tuple(
            run.masker.data(part) for part in (parts[0] if parts else None) or ()
        ),
        trajectory=trajectory,
        files=loaded_files(run.context, judge_name),
        facts=_facts(step, run),
        policy=step.grading_policy_prompt,
    )


def loaded_files(
    context: RunContext, agent_name: str | None
) -> tuple[LoadedFiles, ...]:
    """The files that load steps copied into a named judge's sandbox."""
    loaded = context.metadata.get("loaded_file_artifact_universes") or []
    return tuple(
        LoadedFiles(str(entry.get("destination_path")), tuple(map(str, entry["files"])))
        for entry in cast("Sequence[Mapping[str, Any]]", loaded)
        if agent_name is not None and entry.get("agent_name") == agent_name
    )


def at_path(metadata: Mapping[str, Any], path: str) -> Json:
    """The value at ``a.b.0`` in the context's metadata. Raises LookupError."""
    found: Any = metadata
    try:
        for key in path.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
    except (LookupError, TypeError, ValueError) as error:
        raise LookupError(path) from error
    return cast("Json", found)


def _facts(step: RubricsVerifier, run: StepRun) -> dict[str, Json]:
    paths = step.context_facts_for_judge
    return {label: _fact(path, run) for label, path in paths.items()}


def _fact(path: str, run: StepRun) -> Json:
    try:
        return run.masker.data(at_path(run.context.metadata, path))
    except LookupError:
        run.warn(f"context_facts_for_judge: the run has nothing at '{path}'")
        return None
