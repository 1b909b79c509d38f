"""What happens before a turn's agent: clean up, users, workdir, setup, health.

Spec 12.1, 12.2 and 15. A failure of the *step's own* preparation is
:class:`PreparationFailed`; being unable to do something in the sandbox at all is an outage,
whoever is to blame.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pytest_harbor.errors import (
    STEP_HEALTHCHECK_FAILED,
    STEP_SETUP_FAILED,
    STEP_WORKDIR_FAILED,
    SandboxLost,
    TransferFailed,
)
from pytest_harbor.sandboxes import health
from pytest_harbor.sandboxes.api import ExecResult, Sandbox
from pytest_harbor.sandboxes.environment import User
from pytest_harbor.sandboxes.transfer_types import Download, Upload
from pytest_harbor.tasks.folder.plan_types import HealthCheckPlan, TurnPlan
from pytest_harbor.verification.verifier import TESTS, TRANSCRIPT, VERIFIER_LOGS

SETUP_LOG = "setup.txt"
_TAIL_CHARS = 500


class PreparationFailed(Exception):
    """Raised when a step's own preparation failed. ``kind`` is its failure kind."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


GRADING_FOLDERS = (TESTS, VERIFIER_LOGS)
"""What is emptied after a turn that was verified in the agent's sandbox (spec 12.1)."""


async def remove_transcript(sandbox: Sandbox, scratch: Path) -> None:
    """Remove the transcript of an earlier shared turn (spec 12.1).

    The agent could have put its own ``rm`` in the way, so we look from outside
    whether the transcript is gone. ``scratch`` is a host folder for that look.

    Raises:
        TransferFailed, SandboxLost: an outage.
    """
    await sandbox.exec(["rm", "-rf", "--", TRANSCRIPT], user=0, cwd="/")
    try:
        [left] = await sandbox.download([Download(TRANSCRIPT, scratch / "left")])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not left.is_missing:
        raise SandboxLost(f"{TRANSCRIPT} of an earlier turn cannot be removed")


async def switch_user(
    sandbox: Sandbox, user: User | None, in_place: User | None
) -> None:
    """Make ``user`` the default and the owner of the working directory itself.

    Raises:
        SandboxLost: an outage: the user cannot be switched to.
    """
    await sandbox.set_default_user(user)
    if user == in_place:
        return
    owner = str(user)
    if user is None:  # back to the image's own user, whose name only it knows
        owner = (await sandbox.exec(["id", "-u"], cwd="/")).stdout.strip()
    result = await sandbox.exec(
        ["chown", "--", owner, sandbox.workdir], user=0, cwd="/"
    )
    if not result.ok:
        raise SandboxLost(
            f"cannot switch to user {owner!r}: {_tail(result) or 'chown failed'}"
        )


async def prepare_step(
    sandbox: Sandbox, turn: TurnPlan, user: User | None, logs: Path
) -> None:
    """Merge ``workdir/``, run ``setup.sh``, wait for the step's health check.

    Raises:
        PreparationFailed: one of them failed.
        TransferFailed, SandboxLost: an outage.
    """
    if turn.workdir is not None:
        await _merge_workdir(sandbox, turn.workdir)
    if turn.has_setup:
        await _run_setup(sandbox, turn, user, logs)
    if turn.healthcheck is not None:
        problem = await unhealthy(sandbox, turn.healthcheck, user)
        if problem:
            raise PreparationFailed(STEP_HEALTHCHECK_FAILED, problem)


async def unhealthy(
    sandbox: Sandbox, check: HealthCheckPlan, user: User | None
) -> str | None:
    """Poll a health check; returns what is wrong when it never passes."""
    outcome = await health.poll(check, sandbox, user=user)
    if outcome.healthy:
        return None
    last = outcome.last
    how = "timed out" if last.timed_out else f"exit code {last.exit_code}"
    return (
        f"health check never passed ({outcome.attempts} attempts, last: {how})"
        f"{_said(last)}"
    )


async def _merge_workdir(sandbox: Sandbox, folder: Path) -> None:
    try:
        await sandbox.upload([Upload(folder, sandbox.workdir, modes="keep")])
    except TransferFailed as error:
        if not error.blocked:
            raise
        raise PreparationFailed(
            STEP_WORKDIR_FAILED, f"workdir/ cannot be merged: {error}"
        ) from error


async def _run_setup(
    sandbox: Sandbox, turn: TurnPlan, user: User | None, logs: Path
) -> None:
    result = await sandbox.exec(
        ["bash", f"{sandbox.workdir.rstrip('/')}/setup.sh"],
        user=user,
        timeout_seconds=turn.setup_budget_seconds,
        log=logs / SETUP_LOG,
    )
    if result.ok:
        return
    how = (
        f"ran out of its {turn.setup_budget_seconds:g} s"
        if result.timed_out
        else f"ended with exit code {result.exit_code}"
    )
    raise PreparationFailed(STEP_SETUP_FAILED, f"setup.sh {how}{_said(result)}")


def _said(result: ExecResult) -> str:
    tail = _tail(result)
    return f": {tail}" if tail else ""


def _tail(result: ExecResult) -> str:
    return result.output.strip()[-_TAIL_CHARS:]
