"""What is kept of a turn: collect hooks and artifacts, of ``main`` and its sidecars (spec 7).

Nothing of it decides over the turn: a hook that fails and a path that is not there are
told and noted. A sidecar that died is the agent's doing as likely as ours, so it is no
outage either: nobody can void a bad score by killing one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_harbor.episodes.draft import TurnDraft
from pytest_harbor.errors import SandboxError, SandboxLost, UnsupportedByProvider
from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.transfer_types import Download
from pytest_harbor.tasks.folder.model import MAIN_SERVICE
from pytest_harbor.tasks.folder.plan_types import CollectHookPlan, TurnPlan
from pytest_harbor.verification.artifacts import (
    FOLDER,
    CollectedArtifact,
    Collection,
)

LOG = "collect.txt"


async def collect(
    sandbox: Sandbox,
    draft: TurnDraft,
    *,
    also: Sequence[Download],
    halts: bool,
) -> tuple[CollectedArtifact, ...]:
    """Run the hooks of ``main`` and collect from it; then the same of the sidecars.

    ``also`` travels with the artifacts of ``main``. ``halts``: ``main`` has no further use
    and is ended before the sidecars' turn comes.

    Raises:
        TransferFailed, SandboxLost: ``main`` is lost.
    """
    collection = Collection(draft.plan.artifacts, draft.logs / "verifier" / FOLDER)
    hooks = draft.plan.hooks
    for hook in hooks:
        if hook.service == MAIN_SERVICE:
            await _run_hook(sandbox, hook, draft)
    await collection.fetch(sandbox, also=also)
    sidecars = named_sidecars(draft.plan)
    if sidecars:
        if halts:
            await sandbox.halt()
        await _collect_from_sidecars(sandbox, sidecars, collection, draft)
    collected = collection.finish()
    for item in collected:
        if item.warning:
            draft.warn(item.warning)
    return collected


def named_sidecars(turn: TurnPlan) -> Sequence[str]:
    """The services beside ``main`` that a turn's hooks and artifacts name."""
    named = [hook.service for hook in turn.hooks]
    named += [entry.service for entry in turn.artifacts]
    return [name for name in dict.fromkeys(named) if name != MAIN_SERVICE]


async def _collect_from_sidecars(
    sandbox: Sandbox, names: Sequence[str], collection: Collection, draft: TurnDraft
) -> None:
    for hook in draft.plan.hooks:
        if hook.service != MAIN_SERVICE:
            try:
                await _run_hook(sandbox.services[hook.service], hook, draft)
            except SandboxLost as error:
                draft.warn(f"{_name(hook)} was not run: {error}")
    for name in names:
        await _fetch(sandbox.services[name], name, collection)


async def _fetch(sidecar: Sandbox, name: str, collection: Collection) -> None:
    try:
        await collection.fetch(sidecar, name)
    except SandboxError as error:
        collection.fail(name, str(error))


async def _run_hook(sandbox: Sandbox, hook: CollectHookPlan, draft: TurnDraft) -> None:
    """Run one hook. Raises SandboxLost."""
    try:
        result = await sandbox.exec(
            hook.command,
            user=hook.user,
            timeout_seconds=hook.timeout_seconds,
            log=_log(draft, hook),
        )
    except UnsupportedByProvider as error:  # the hook's user is none (any more)
        draft.warn(f"{_name(hook)} was not run: {error}")
        return
    if not result.ok:
        how = (
            f"ran out of its {hook.timeout_seconds:g} s"
            if result.timed_out
            else f"ended with exit code {result.exit_code}"
        )
        draft.warn(f"{_name(hook)} {how}")


def _log(draft: TurnDraft, hook: CollectHookPlan) -> Path:
    name = LOG
    if hook.service != MAIN_SERVICE:
        name = f"collect-{hook.service}.txt"
    return draft.logs / "agent" / name


def _name(hook: CollectHookPlan) -> str:
    of = "" if hook.service == MAIN_SERVICE else f" of service '{hook.service}'"
    return f"collect hook {hook.command!r}{of}"
