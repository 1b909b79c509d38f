"""One turn: prepare, agent, collect, verify, decide (spec 6 and 12)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import anyio
import anyio.to_thread

from pytest_harbor.agents import oracle
from pytest_harbor.episodes.agent_phase import run_agent_phase
from pytest_harbor.episodes.collect import collect
from pytest_harbor.episodes.draft import TurnDraft
from pytest_harbor.episodes.gates import gate_met
from pytest_harbor.episodes.prepare import (
    GRADING_FOLDERS,
    PreparationFailed,
    prepare_step,
    remove_transcript,
    switch_user,
)
from pytest_harbor.episodes.result import Phase, TurnResult
from pytest_harbor.episodes.sessions import close_session
from pytest_harbor.episodes.stage import Stage
from pytest_harbor.errors import (
    VERIFIER_ERROR,
    SandboxError,
    SandboxLost,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.environment import Limits, User
from pytest_harbor.sandboxes.transfer_types import Download, Upload
from pytest_harbor.tasks.folder.plan_types import TurnPlan
from pytest_harbor.verification.artifacts import (
    CollectedArtifact,
    Placement,
    place,
)
from pytest_harbor.verification.verifier import (
    Verification,
    VerifierInputs,
    merge_logs,
    verify,
)


async def run_turn(stage: Stage, draft: TurnDraft) -> TurnResult:
    """Run one turn to its end; a failure of the turn's own is its result.

    Raises:
        SandboxError: an outage; ``draft`` holds what is known.
    """
    try:
        return await _run_phases(stage, draft)
    except UnsupportedByProvider as error:
        # Refusing is for what never began. Here a user, say, cannot be switched to.
        raise SandboxLost(str(error)) from error
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(stage.seed.masker.folder, draft.logs)


async def _run_phases(stage: Stage, draft: TurnDraft) -> TurnResult:
    user = _agent_user(stage, draft.plan)
    try:
        with _during(stage, draft, "prepare"):
            await _prepare(stage, draft, user)
    except PreparationFailed as error:
        draft.failed(error.kind, str(error))
        is_graded = draft.plan.index > 0
        return draft.result("prepare_failed", reward=0.0 if is_graded else None)

    with _during(stage, draft, "agent"):
        action = await run_agent_phase(stage, draft, user)
        if not stage.plan.keeps_session or stage.is_last(draft.plan):
            await close_session(stage, draft.logs / "agent", draft.warn)
        await _warn_of_refusals(stage.sandbox, draft, "agent")
    if action != "verify":
        await _save_agent_logs(stage.sandbox, draft)
        _keep_transcript(draft)
        if action == "count_as_zero":
            return draft.result("counted_as_zero", reward=0.0)
        stage.policy_says_retry = action == "retry"
        return draft.result("agent_failed")

    with _during(stage, draft, "collect"):
        collected = await _collect(stage, draft)
    with _during(stage, draft, "verify"):
        draft.verification = await _verify(stage, draft, collected)
    return _decide(draft)


@contextmanager
def _during(stage: Stage, draft: TurnDraft, phase: Phase) -> Iterator[None]:
    """A phase, with a word about what ran out of memory in it."""
    before = stage.sandbox.oom_kills
    try:
        with draft.during(phase):
            yield
    finally:
        killed = stage.sandbox.oom_kills - before
        _warn_of_kills(draft, phase, killed, stage.seed.environment.limits)


def _warn_of_kills(draft: TurnDraft, phase: Phase, killed: int, limits: Limits) -> None:
    """The sandbox lives on, so it is no outage; but it explains many a bad reward."""
    if killed > 0:
        processes = "1 process was" if killed == 1 else f"{killed} processes were"
        limit = f" (memory_mb = {limits.memory_mib})" if limits.memory_mib else ""
        draft.warn(f"out of memory in phase {phase}: {processes} killed{limit}")


async def _warn_of_refusals(sandbox: Sandbox, draft: TurnDraft, phase: Phase) -> None:
    """Say what the allowlist refused: it explains many a bad reward. Raises SandboxLost."""
    for line in await sandbox.network_refusals():
        draft.warn(f"network in phase {phase}: {line}")


def _agent_user(stage: Stage, turn: TurnPlan) -> User | None:
    for user in (turn.agent_user, stage.seed.agent_user):
        if user is not None:
            return user
    return stage.image_user


async def _prepare(stage: Stage, draft: TurnDraft, user: User | None) -> None:
    sandbox, turn = stage.sandbox, draft.plan
    await stage.switch_network(None)
    await _clean_and_place(stage, draft, user)
    await switch_user(sandbox, user, stage.user_in_place)
    stage.user_in_place = user
    await prepare_step(sandbox, turn, user, draft.logs / "agent")


async def _clean_and_place(stage: Stage, draft: TurnDraft, user: User | None) -> None:
    """Clean up after a shared turn and place the oracle's solution, in one transfer."""
    uploads: Sequence[Upload] = ()
    empty: list[str] = []
    if stage.grading_files_left:
        empty += GRADING_FOLDERS
    if isinstance(stage.agent, oracle.OracleAgent):
        uploads, also_empty = stage.agent.placement(draft.plan)
        empty += also_empty
        if uploads:
            stage.sandbox.expect_command(user)
        missing = oracle.shortfall(draft.plan)
        if missing:
            draft.warn(missing)
    if uploads or empty:
        await stage.sandbox.upload(uploads, empty=empty)
    if stage.grading_files_left and stage.transcript_left:
        await remove_transcript(stage.sandbox, draft.logs / ".incoming")
    stage.grading_files_left = False


async def _collect(stage: Stage, draft: TurnDraft) -> tuple[CollectedArtifact, ...]:
    sandbox, turn = stage.sandbox, draft.plan
    # The agent's turn is over: hooks and verifier have users of their own.
    await sandbox.set_default_user(stage.image_user)
    scratch = draft.logs / ".incoming"
    is_separate = turn.verifier.mode == "separate"
    if not is_separate:
        # Else what the agent left running would get more of it while nobody needs it.
        await stage.switch_network(turn.verifier.network)
    collected = await collect(
        sandbox,
        draft,
        # A shared verification brings the agent's logs along with its own.
        also=[Download("/logs/agent", scratch / "agent")] if is_separate else (),
        halts=is_separate and stage.is_last(turn) and not stage.sandboxes.keeps,
    )
    if is_separate:
        for warning in await anyio.to_thread.run_sync(merge_logs, scratch, draft.logs):
            draft.warn(warning)
    return collected


async def _verify(
    stage: Stage, draft: TurnDraft, collected: tuple[CollectedArtifact, ...]
) -> Verification:
    turn = draft.plan
    draft.verifier_mode = turn.verifier.mode
    own = stage.seed.verifier_environments[turn.index]
    placement = Placement()
    if own is not None:
        placement = place(collected, stage.sandbox.workdir)
    inputs = VerifierInputs(
        env=stage.seed.verifier_envs[turn.index],
        trajectory=draft.agent.trajectory,
        response=draft.agent.text,
        task_data=stage.plan.task_data,
        placement=placement,
        reward_key=stage.plan.reward_key,
    )
    if own is None:
        stage.grading_files_left = True
        done = await _verify_in(stage.sandbox, stage, draft, inputs)
        await _warn_of_refusals(stage.sandbox, draft, "verify")
        stage.transcript_left = done.transcript_left
        return done
    if stage.is_last(turn):
        await stage.sandboxes.finish(stage.sandbox)
    sandbox = await stage.sandboxes.start(own, f"verifier-{turn.name}")
    try:
        done = await _verify_in(sandbox, stage, draft, inputs)
        await _warn_of_refusals(sandbox, draft, "verify")
        return done
    finally:
        _warn_of_kills(draft, "verify", sandbox.oom_kills, own.limits)
        await stage.sandboxes.finish(sandbox)


async def _verify_in(
    sandbox: Sandbox, stage: Stage, draft: TurnDraft, inputs: VerifierInputs
) -> Verification:
    try:
        return await verify(
            sandbox,
            draft.plan.verifier,
            inputs,
            logs=draft.logs,
            masker=stage.seed.masker,
        )
    finally:
        _keep_transcript(draft)


def _keep_transcript(draft: TurnDraft) -> None:
    """Keep this turn's transcript on the host.

    A shared verification brings it along. A separate one does not, and what lies in its
    place in the agent's sandbox may be an earlier turn's.
    """
    trajectory = draft.agent.trajectory
    path = draft.transcript
    is_there = os.path.lexists(path)
    was_verified = draft.verifier_mode == "shared"
    if trajectory is None or (was_verified and is_there):
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.write_text(json.dumps(trajectory, default=str, indent=2) + "\n")


def _decide(draft: TurnDraft) -> TurnResult:
    done = draft.verification
    for warning in done.warnings:
        draft.warn(warning)
    if done.masked:
        draft.failed(VERIFIER_ERROR, done.masked)
        return draft.result("masked")
    reading = done.reading
    met = gate_met(reading.rewards, draft.plan.min_reward)
    if not reading.is_valid:
        assert reading.kind is not None
        draft.failed(reading.kind, reading.problem)
        return draft.result("no_reward", reward=0.0, min_reward_met=met)
    return draft.result(
        "graded",
        reward=reading.reward,
        rewards=reading.rewards,
        reward_file=reading.file,
        min_reward_met=met,
    )


async def _save_agent_logs(sandbox: Sandbox, draft: TurnDraft) -> None:
    """Keep the agent's logs of a turn that no verifier will see; best effort."""
    scratch = draft.logs / ".incoming"
    try:
        await sandbox.download([Download("/logs/agent", scratch / "agent")])
    except SandboxError as error:
        draft.warn(f"the agent's logs were not saved: {error}")
    await anyio.to_thread.run_sync(merge_logs, scratch, draft.logs)
