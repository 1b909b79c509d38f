"""Verification of one turn in one sandbox (spec 6 step 5, 8.2, 9).

The steps are the same in the agent's sandbox and in a fresh one: empty and fill
``/tests`` and ``/logs/verifier`` in one transfer, run ``bash /tests/test.sh`` under
``timeout``, bring ``/logs`` to the host in one transfer, read the reward there.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import anyio.to_thread

from pytest_harbor.errors import NO_REWARD_FILE, TransferFailed
from pytest_harbor.sandboxes.api import ExecResult, Sandbox
from pytest_harbor.sandboxes.output import Masker, log_cut
from pytest_harbor.sandboxes.transfer_types import Download, Downloaded, Upload
from pytest_harbor.tasks.folder.plan_types import VerifierPlan
from pytest_harbor.verification.artifacts import Placement
from pytest_harbor.verification.ctrf import InnerTest, read_ctrf
from pytest_harbor.verification.python_verifier import generated_uploads
from pytest_harbor.verification.rewards import (
    JSON_NAME,
    TEXT_NAME,
    RewardReading,
    read_rewards,
)

TESTS: Final = "/tests"
VERIFIER_LOGS: Final = "/logs/verifier"
TRANSCRIPT: Final = "/logs/agent/trajectory.json"
TEST_SCRIPT: Final = f"{TESTS}/test.sh"

OUTPUT_NAME: Final = "test-stdout.txt"
CAPTURE_NAME: Final = "captured-stdout.txt"
"""Name of our capture where the script writes ``test-stdout.txt`` itself."""
TAIL_LINES: Final = 30
_TAIL_BYTES: Final = 64 * 1024

NEEDED_TOOLS: Final = ("bash", "timeout")
"""Without these, ``bash /tests/test.sh`` under ``timeout`` cannot start."""


@dataclass(frozen=True)
class VerifierInputs:
    """What a verifier gets to see of its turn."""

    env: Mapping[str, str] = field(default_factory=dict)
    trajectory: Mapping[str, Any] | None = None
    response: str | None = None
    task_data: Mapping[str, object] | None = None
    placement: Placement = field(default_factory=Placement)
    """Artifacts of the agent, for a sandbox of the verifier's own."""
    reward_key: str | None = None


@dataclass(frozen=True)
class Verification:
    """How a verification went. ``masked`` says why the verifier could not start."""

    masked: str = ""
    reading: RewardReading = field(default_factory=RewardReading)
    tests_from: Literal["folder", "image"] | None = None
    exit_code: int | None = None
    timed_out: bool = False
    output_tail: str = ""
    inner_tests: tuple[InnerTest, ...] = ()
    warnings: tuple[str, ...] = ()
    transcript_left: bool = True
    """False when we have seen that nothing lies at :data:`TRANSCRIPT` afterwards."""


async def verify(
    sandbox: Sandbox,
    plan: VerifierPlan,
    inputs: VerifierInputs,
    *,
    logs: Path,
    masker: Masker,
) -> Verification:
    """Verify in ``sandbox``; the turn's ``agent/`` and ``verifier/`` are below ``logs``.

    Raises:
        TransferFailed, SandboxLost: an outage (spec 9).
    """
    missing = missing_tools(await sandbox.initial_tools())
    if missing:
        return Verification(
            masked=f"the verifier cannot start: {' and '.join(missing)} not found in "
            "its sandbox"
        )
    brings_tests = plan.image_tests_win and await _has_tests(sandbox)
    if not brings_tests and not plan.tests and plan.python_verifier is None:
        return Verification(
            masked=f"the verifier cannot start: its image has no {TEST_SCRIPT} and the "
            "task has no tests/ to upload"
        )
    warnings = list(inputs.placement.warnings)
    warnings += await _fill(sandbox, plan, inputs, keep_tests=brings_tests)
    result = await _run_script(sandbox, plan, inputs.env, logs / "verifier")
    got = await fetch_logs(sandbox, logs, with_agent=plan.mode == "shared")
    folder = logs / "verifier"
    reading = read_rewards(
        folder, reward_key=inputs.reward_key, dropped=got.dropped_rewards
    )
    return Verification(
        reading=_explained(reading, plan, result),
        tests_from="image" if brings_tests else "folder",
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        output_tail=masker.text(_tail(folder, result)),
        inner_tests=read_ctrf(folder),
        warnings=(*warnings, *got.warnings, *reading.warnings),
        transcript_left=got.transcript_left,
    )


def missing_tools(tools: frozenset[str]) -> tuple[str, ...]:
    """What the verifier cannot start without, of what was there at the start."""
    return tuple(tool for tool in NEEDED_TOOLS if tool not in tools)


async def _has_tests(sandbox: Sandbox) -> bool:
    return (await sandbox.exec(["test", "-f", TEST_SCRIPT], user=0, cwd="/")).ok


async def _fill(
    sandbox: Sandbox,
    plan: VerifierPlan,
    inputs: VerifierInputs,
    *,
    keep_tests: bool,
) -> list[str]:
    """Empty what an agent may have planted in, and bring everything in at once."""
    uploads = list(inputs.placement.uploads)
    empty = [*inputs.placement.empty, VERIFIER_LOGS]
    if not keep_tests:
        empty.append(TESTS)
        uploads += _tests(sandbox, plan, inputs)
    sandbox.expect_command(plan.user)
    if inputs.trajectory is None:
        await sandbox.upload(uploads, empty=empty)
        return []
    text = json.dumps(inputs.trajectory, default=str).encode()
    try:
        await sandbox.upload([*uploads, Upload(text, TRANSCRIPT)], empty=empty)
    except TransferFailed as error:
        if not error.blocked:
            raise
        # Only the transcript goes to a folder that was not emptied. An agent that
        # puts something in its place must not get a second try for it.
        await sandbox.upload(uploads, empty=empty)
        return [f"the transcript was not written: {error}"]
    return []


def _tests(
    sandbox: Sandbox, plan: VerifierPlan, inputs: VerifierInputs
) -> Sequence[Upload]:
    uploads = [
        Upload(
            layer.path,
            TESTS,
            executable=frozenset({"test.sh"}),
            exclude=layer.exclude,
        )
        for layer in plan.tests
    ]
    if plan.python_verifier is not None:
        uploads += generated_uploads(
            plan.python_verifier,
            workspace=sandbox.workdir,
            task_data=inputs.task_data,
            response=inputs.response,
        )
    return uploads


async def _run_script(
    sandbox: Sandbox, plan: VerifierPlan, env: Mapping[str, str], folder: Path
) -> ExecResult:
    """Run ``test.sh``, its output going to our capture on the host.

    The sandbox's own limit is what counts: it kills the whole tree and cannot be
    confused with a script that ends with exit code 124. ``timeout`` is the documented
    frame of a verifier and fires a moment later, if ever.
    """
    backstop = math.ceil(plan.budget_seconds) + 5
    return await sandbox.exec(
        ["timeout", str(backstop), "bash", TEST_SCRIPT],
        user=plan.user,
        env=env,
        timeout_seconds=plan.budget_seconds,
        log=folder / OUTPUT_NAME,
    )


@dataclass(frozen=True)
class FetchedLogs:
    """What came of :func:`fetch_logs`."""

    dropped_rewards: frozenset[str]
    """Reward files that were left out on the way."""
    transcript_left: bool
    warnings: tuple[str, ...]


async def fetch_logs(sandbox: Sandbox, logs: Path, *, with_agent: bool) -> FetchedLogs:
    """Bring ``/logs/verifier``, and ``/logs/agent`` if wanted, below ``logs`` at once.

    An agent that fills its log folder beyond all measure only loses its own logs.

    Raises:
        TransferFailed, SandboxLost: as ``Sandbox.download``.
    """
    scratch = logs / ".incoming"
    everything = Download("/logs", scratch)
    verifier_only = Download(VERIFIER_LOGS, scratch / "verifier")
    await anyio.to_thread.run_sync(_remove, scratch)
    warnings: list[str] = []
    below = "verifier/" if with_agent else ""
    [got] = await sandbox.download([everything if with_agent else verifier_only])
    transcript_left = not with_agent or has_transcript(got, scratch / "agent")
    if with_agent and got.status == "failed":
        below = ""
        warnings.append(f"the agent's logs were not saved: {got.reason}")
        await anyio.to_thread.run_sync(_remove, scratch)
        [got] = await sandbox.download([verifier_only])
    if got.status == "failed":
        warnings.append(f"the verifier's logs are not complete: {got.reason}")
    warnings += await anyio.to_thread.run_sync(merge_logs, scratch, logs)
    return FetchedLogs(
        dropped_rewards(got.dropped, below), transcript_left, tuple(warnings)
    )


def has_transcript(got: Downloaded, agent: Path) -> bool:
    """False only when ``/logs`` came whole and has nothing where the transcript goes.

    ``agent`` is where its folder ``agent`` came to lie.
    """
    if got.status == "failed":
        return True
    name = TRANSCRIPT.rpartition("/")[2]
    dropped = {item.partition(": ")[0] for item in got.dropped}
    return os.path.lexists(agent / name) or bool(dropped & {"agent", f"agent/{name}"})


def merge_logs(scratch: Path, logs: Path) -> list[str]:
    """Move what came in beside what the host wrote; the host's own files stay."""
    captured = logs / "verifier" / OUTPUT_NAME
    if (scratch / "verifier" / OUTPUT_NAME).is_file() and captured.exists():
        if captured.stat().st_size:
            captured.replace(captured.with_name(CAPTURE_NAME))
        else:
            captured.unlink()
    warnings: list[str] = []
    for name in ("agent", "verifier"):
        if not (scratch / name).is_dir() or (scratch / name).is_symlink():
            continue
        (logs / name).mkdir(parents=True, exist_ok=True)
        for entry in sorted(os.scandir(scratch / name), key=lambda item: item.name):
            target = logs / name / entry.name
            if os.path.lexists(target):
                warnings.append(f"/logs/{name}/{entry.name} was not saved: name taken")
            else:
                Path(entry.path).rename(target)
    _remove(scratch)
    return warnings


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def dropped_rewards(dropped: Sequence[str], below: str) -> frozenset[str]:
    """Names of reward files among what a transfer left out (``path: reason``).

    ``below`` is where ``/logs/verifier`` lies in the transfer.
    """
    paths = {item.partition(": ")[0] for item in dropped}
    return frozenset(
        name for name in (JSON_NAME, TEXT_NAME) if f"{below}{name}" in paths
    )


def _tail(folder: Path, result: ExecResult) -> str:
    """The last lines of the output, also where the log was cut before them."""
    tail = output_tail(folder)
    return _last_lines(result.output) if tail.endswith(log_cut()) else tail


def output_tail(folder: Path) -> str:
    """The last lines of the verifier's output: our capture, else the script's own."""
    for name in (CAPTURE_NAME, OUTPUT_NAME):
        path = folder / name
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            continue
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return _last_lines(text)
    return ""


def _last_lines(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-TAIL_LINES:])


def _explained(
    reading: RewardReading, plan: VerifierPlan, result: ExecResult
) -> RewardReading:
    """The reading with a ``problem`` that says what the script did."""
    if reading.is_valid:
        return reading
    how = (
        f"ran out of its {plan.budget_seconds:g} s"
        if result.timed_out
        else f"ended with exit code {result.exit_code}"
    )
    if reading.kind == NO_REWARD_FILE:
        wrote = f"and wrote neither {JSON_NAME} nor {TEXT_NAME}"
        problem = f"no reward: test.sh {how} {wrote}"
    else:
        problem = f"no reward: test.sh {how}; {reading.problem}"
    if has_windows_line_ends(plan):
        problem += (
            "; test.sh has Windows line ends (CRLF), which bash cannot read: "
            "save it with LF"
        )
    return RewardReading(kind=reading.kind, problem=problem)


def has_windows_line_ends(plan: VerifierPlan) -> bool:
    """True when the ``test.sh`` that was run has CRLF line ends."""
    for layer in reversed(plan.tests):
        script = layer.path / "test.sh"
        if plan.python_verifier is None and script.is_file():
            return b"\r\n" in script.read_bytes()
    return False
