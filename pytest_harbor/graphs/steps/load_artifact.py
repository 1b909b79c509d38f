"""``load_artifact``: data into an env, or files into an agent's sandbox (spec 5)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from pytest_harbor.errors import StepError
from pytest_harbor.events import Json
from pytest_harbor.graphs.collecting import name_problem
from pytest_harbor.graphs.context import Append, Change, DeployedAgent, DeployedEnv
from pytest_harbor.graphs.payloads import file_tree
from pytest_harbor.graphs.targets import sandbox_of
from pytest_harbor.graphs.universes import read_universe
from pytest_harbor.protocols import data_plane
from pytest_harbor.sandboxes.transfer_types import Upload
from pytest_harbor.tasks.steps.entries import LOCAL_VERSION, ArtifactEntry
from pytest_harbor.tasks.steps.model import LoadArtifact
from pytest_harbor.tasks.steps.sources import ArtifactRef, download_names

if TYPE_CHECKING:
    from pytest_harbor.graphs.steps.api import RunSettings, StepRun
    from pytest_harbor.protocols.data_plane import EnvCard
    from pytest_harbor.sandboxes.api import Sandbox

FILES_FOLDER: Final = "/tmp/file_artifacts"  # noqa: S108 - of the format
PAYLOAD_FOLDER: Final = "/app/files"
DATA_FOLDER: Final = "/tmp/environment_data"  # noqa: S108 - in the env's own sandbox
NAMES_KEPT: Final = 200
_SNAPSHOTS: Final = "env_snapshotted_universes"

Target = DeployedEnv | DeployedAgent


async def load_artifact(step: LoadArtifact, run: StepRun) -> None:
    """Load what the step names into its env or agent, and write what was loaded.

    Raises:
        NotDeployed: no such env or agent in this run.
        StepError: no such artifact, a name that does not fit, an env without a data plane.
        ServerRefused: the env's data plane answers an error: method, message, code.
        ProtocolError, SandboxError: it, or the sandbox, cannot be used.
    """
    target: Target
    if step.env_id is not None:
        target = run.context.env(step.env_id)
    else:
        assert step.agent_name is not None  # the model's own rule
        target = run.context.agent(step.agent_name)
    changes: list[Change] = []
    if step.artifact_from_step_id is not None:
        changes += await _hand_off(step, run, target)
    for reference in step.sources:
        entry = find_artifact(reference, run)
        changes += await _load(step, run, entry, target)
    if step.urls:
        changes += await _download(step, run, target)
    run.write(*changes)


def find_artifact(reference: ArtifactRef, run: StepRun) -> ArtifactEntry:
    """The artifact of the bundle.

    Raises:
        StepError: there is none (names the nearest), or not of that version.
        TaskLoadError: its folder cannot be used.
    """
    entry = run.bundle.artifact(reference.id)
    if entry is None:
        near = run.bundle.near("artifact", reference.id)
        hint = f" (did you mean '{near}'?)" if near else ""
        raise StepError(f"no artifact '{reference.id}' in the bundle{hint}")
    if reference.version not in (None, LOCAL_VERSION):
        raise StepError(
            f"artifact '{reference.id}' has version {LOCAL_VERSION} only, not "
            f"{reference.version}"
        )
    return entry


async def _load(
    step: LoadArtifact, run: StepRun, entry: ArtifactEntry, target: Target
) -> list[Change]:
    """Load one artifact; which way depends on its type and the target (spec 5.1)."""
    if entry.type == "environment":
        if isinstance(target, DeployedEnv):
            await _load_data(run, entry, target)
            return []
        return [await _load_payload(step, run, entry, target)]
    if entry.type not in ("file", "file_artifact_universe"):
        raise StepError(
            f"artifact '{entry.name}' is a {entry.type}, which is not loaded"
        )
    files = {name: entry.folder / name for name in entry.files}
    if entry.file is not None:
        files = {entry.file.name: entry.file}
    reference: dict[str, Json] = {
        "id": entry.name,
        "version": LOCAL_VERSION,
        "artifact_type": entry.type,
    }
    return [await _copy(step, run, files, target, reference)]


async def _load_data(run: StepRun, entry: ArtifactEntry, env: DeployedEnv) -> None:
    """``data/reset``, then ``data/add`` with the artifact's file."""
    assert entry.file is not None
    if entry.environment_name != env.mcp_server_name:
        raise StepError(
            f"artifact '{entry.name}' is for environment '{entry.environment_name}', "
            f"and env '{env.env_id}' is environment '{env.mcp_server_name}'"
        )
    card = _card_with_data(env)
    seconds = load_seconds(entry.file.stat().st_size, run.settings)
    part = await _data_part(run, entry.name, entry.file, env)
    plane = data_plane.DataPlane(card.data_url, token=run.data_token)
    async with plane:
        await plane.reset(timeout_seconds=seconds)
        await plane.add([part], timeout_seconds=seconds)


def load_seconds(size_bytes: int, settings: RunSettings) -> float:
    """How long ``data/reset`` and ``data/add`` may take (spec 5.1)."""
    seconds = data_plane.time_limit(
        size_bytes,
        base=settings.load_base_seconds,
        per_gigabyte=settings.load_seconds_per_gigabyte,
    )
    return min(seconds, settings.load_max_seconds)


def _card_with_data(env: DeployedEnv) -> EnvCard:
    """The env's card, where it offers to reset and add. Raises StepError."""
    if env.environment_card is None or env.environment_card_url is None:
        raise StepError(
            f"env '{env.env_id}' has no data plane: it is a plain MCP server without a "
            "card, so no data can be loaded into it"
        )
    base_url = env.environment_card_url.removesuffix(data_plane.CARD_PATH)
    card = data_plane.parse_card(dict(env.environment_card), base_url)
    lacks = {data_plane.RESET, data_plane.ADD} - card.operations
    if lacks:
        raise StepError(
            f"env '{env.env_id}' has no {' and no '.join(sorted(lacks))}: its card does "
            "not list it among its operations"
        )
    return card


async def _data_part(
    run: StepRun, name: str, file: Path, env: DeployedEnv
) -> Mapping[str, Any]:
    instance = run.instance(env.instance_id)
    if instance is None or instance.sandbox is None:  # a server of somebody else
        try:
            return data_plane.bytes_part(file)
        except ValueError as error:
            raise StepError(f"artifact '{name}': {error}") from error
    place = f"{DATA_FOLDER}/{name}/{file.name}"
    await sandbox_of(env, run).upload([Upload(file, place)])
    return data_plane.uri_part(PurePosixPath(place).as_uri(), name=file.name)


async def _load_payload(
    step: LoadArtifact, run: StepRun, entry: ArtifactEntry, agent: DeployedAgent
) -> Append:
    """The data of an environment as files of an agent."""
    assert entry.file is not None
    tree = await anyio.to_thread.run_sync(file_tree, entry.file)
    folder = step.destination_path or PAYLOAD_FOLDER
    uploads = [Upload(content, f"{folder}/{name}") for name, content in tree.items()]
    await _upload(sandbox_of(agent, run), uploads)
    names: list[Json] = [*sorted(tree)[:NAMES_KEPT]]
    return Append(
        "loaded_environment_artifacts",
        {
            "id": entry.name,
            "version": LOCAL_VERSION,
            "agent_name": agent.agent_name,
            "destination_path": folder,
            "file_count": len(tree),
            "files": names,
        },
    )


async def _hand_off(step: LoadArtifact, run: StepRun, target: Target) -> list[Change]:
    """What another step collected (spec 9.5)."""
    source = step.artifact_from_step_id
    assert source is not None
    collected = _recorded(source, run.context.metadata)
    reference = collected.get("file_artifact_universe")
    if reference is None:
        run.warn(f"step {source} collected nothing, so nothing is loaded")
        return []
    universe = await read_universe(run.store, reference)
    if universe is None:
        raise StepError(
            f"the universe {reference['id']} of step {source} is not in the object store"
        )
    loaded: dict[str, Json] = {
        "id": universe.id,
        "version": universe.version,
        "artifact_type": "file_artifact_universe",
    }
    with tempfile.TemporaryDirectory(prefix="pytest-harbor-hand-off-") as folder:
        files: dict[str, Path] = {}
        for number, file in enumerate(universe.files):
            copy = Path(folder, str(number))
            await run.store.fetch(file.object_url, copy)
            copy.chmod(0o600 | file.mode & 0o111)  # noqa: ASYNC240 - a local file
            files[file.path] = copy
        return [await _copy(step, run, files, target, loaded)]


def _recorded(step_id: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("collected_artifacts", _SNAPSHOTS):
        found: Mapping[str, Any] | None = (metadata.get(key) or {}).get(step_id)
        if found is not None:
            return found
    raise StepError(f"step {step_id} recorded nothing that could be loaded")


async def _download(step: LoadArtifact, run: StepRun, target: Target) -> list[Change]:
    """Downloads into an agent's sandbox."""
    from pytest_harbor.protocols.downloads import download

    assert isinstance(target, DeployedAgent)
    names = download_names(step.urls)
    folder = step.destination_path or FILES_FOLDER
    with tempfile.TemporaryDirectory(prefix="pytest-harbor-download-") as host:
        uploads = []
        for number, (url, name) in enumerate(zip(step.urls, names, strict=True)):
            copy = Path(host, str(number))
            await download(url.url, copy, max_bytes=run.settings.max_collect_file_bytes)
            uploads.append(Upload(copy, f"{folder}/{name}"))
        await _upload(sandbox_of(target, run), uploads)
    loaded: list[Json] = [*names]
    return [
        Append(
            "loaded_urls",
            {
                "step_id": step.id,
                "agent_name": target.agent_name,
                "sandbox_name": None,
                "destination_path": folder,
                "files": loaded,
            },
        )
    ]


async def _copy(
    step: LoadArtifact,
    run: StepRun,
    files: Mapping[str, Path],
    target: Target,
    reference: Mapping[str, Json],
) -> Append:
    """Copy files into the target's sandbox; returns the entry that the judge reads."""
    for name in files:
        if problem := name_problem(name):
            raise StepError(
                f"{reference['id']}: {name!r} {problem}; nothing was written"
            )
    folder = step.destination_path or FILES_FOLDER
    uploads = [Upload(file, f"{folder}/{name}") for name, file in files.items()]
    await _upload(sandbox_of(target, run), uploads)
    names: list[Json] = [*files]
    return Append(
        "loaded_file_artifact_universes",
        {
            **reference,
            "env_id": step.env_id,
            "agent_name": step.agent_name,
            "destination_path": folder,
            "files": names,
        },
    )


async def _upload(sandbox: Sandbox, uploads: Sequence[Upload]) -> None:
    if uploads:
        await sandbox.upload(uploads)
