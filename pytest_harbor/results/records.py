"""Record files of a run: one JSON object a line, appended as each episode ends.

``started.jsonl`` has a line per episode that began, ``rollouts.jsonl`` one per graded or
masked episode (spec 19.3), ``rollouts_failures.jsonl`` one per failed try (spec 19.4). Each
line is one write to a file opened for appending, which the kernel keeps in one piece
among writers of several processes; a killed run keeps what was finished.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_harbor import __version__
from pytest_harbor.errors import REFUSED

if TYPE_CHECKING:
    from pytest_harbor.episodes.result import (
        EpisodeResult,
        FailedAttempt,
        TurnResult,
    )
    from pytest_harbor.verdicts import Verdict

STARTED: Final = "started.jsonl"
ROLLOUTS: Final = "rollouts.jsonl"
FAILURES: Final = "rollouts_failures.jsonl"
EPISODE: Final = "episode.json"
MAX_REASON: Final = 2000  # characters, spec 19.4


@dataclass(frozen=True)
class Origin:
    """Where an episode comes from: what the result itself does not know."""

    node_id: str
    min_reward: float
    worker: str = "main"
    is_test: bool = False
    """True for a Python test that asked for the episode and judges it itself."""
    must_miss: bool = False
    is_xfail: bool = False
    """True where an ``xfail`` mark says that the item fails."""


def plain(value: object) -> Any:
    """Make anything JSON: paths as text, NaN and infinities as text, the rest by ``str``."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


class Records:
    """The record files in one run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def started(
        self,
        *,
        origin: Origin,
        task_id: str,
        agent: str | None,
        attempt: int,
        sandbox: str,
    ) -> None:
        """Note that an episode begins, so that a killed run shows what was going on."""
        self.append(
            STARTED,
            {
                "node_id": origin.node_id,
                "task_id": task_id,
                "agent": agent,
                "attempt": attempt,
                "sandbox": sandbox,
                "worker": origin.worker,
                "pid": os.getpid(),
                "started_at": time.time(),
            },
        )

    def finished(
        self, result: EpisodeResult, verdict: Verdict, *, origin: Origin
    ) -> None:
        """Write an episode's rows and its ``episode.json``."""
        common = _common(result, origin)
        for number, attempt in enumerate(result.failed_attempts, 1):
            last = number == len(result.failed_attempts)
            final = last and not (result.is_graded or result.mask_sample)
            row = common | _failure(attempt, final=final)
            self.append(FAILURES, row | _judged(verdict) if final else row)
        if result.is_graded or result.mask_sample:
            row = common | _rollout(result) | _judged(verdict)
            self.append(ROLLOUTS, row)
        elif not result.failed_attempts:
            self.append(FAILURES, common | _only_failure(result) | _judged(verdict))
        if result.logs is not None:
            whole = common | _rollout(result) | _judged(verdict)
            whole["status"] = result.status
            whole["failed_attempts"] = plain(result.failed_attempts)
            write_json(result.logs / EPISODE, whole)

    def broken(self, *, origin: Origin, task_id: str, reason: str) -> None:
        """Note a task that could not be loaded: it is never silently left out."""
        now = time.time()
        row = {
            "node_id": origin.node_id,
            "task_id": task_id,
            "agent": None,
            "attempt": None,
            "worker": origin.worker,
            "failure_kind": REFUSED,
            "failure_reason": short(reason),
            "terminal": True,
            "final": True,
            "started_at": now,
            "ended_at": now,
            "seconds": 0.0,
        }
        self.append(FAILURES, row)

    def append(self, name: str, row: Mapping[str, object]) -> None:
        """Add a line to one of the files, in one piece. Raises OSError."""
        line = json.dumps(plain(row), ensure_ascii=True, allow_nan=False) + "\n"
        target = os.open(
            self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        try:
            os.write(target, line.encode("ascii"))
        finally:
            os.close(target)


def read(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a record file; a last line that was cut off is left out."""
    try:
        content = file.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return
    for line in content.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def write_json(path: Path, value: object) -> None:
    """Write a JSON file in one step: readers see the old one or the new one."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    new.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    new.replace(path)


def _common(result: EpisodeResult, origin: Origin) -> dict[str, Any]:
    return {
        "node_id": origin.node_id,
        "task_id": result.task_id,
        "agent": result.agent,
        "model": result.model,
        "attempt": result.attempt,
        "digest": result.digest,
        "sandbox": result.sandbox,
        "isolation": result.isolation,
        "min_reward": origin.min_reward,
        "is_test": origin.is_test,
        "must_miss": origin.must_miss,
        "is_xfail": origin.is_xfail,
        "worker": origin.worker,
        "logs": result.logs,
        "started_at": result.started_at,
        "ended_at": result.started_at + result.seconds,
        "seconds": result.seconds,
        "kept_sandboxes": list(result.kept_sandboxes),
        "warnings": list(result.warnings),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """What a row was made with."""
    return {"pytest-harbor": __version__, "python": platform.python_version()}


def short(reason: str | None) -> str | None:
    """A reason as long as a row holds it (spec 19.4)."""
    return None if reason is None else reason[:MAX_REASON]


def _rollout(result: EpisodeResult) -> dict[str, Any]:
    return {
        "reward": result.reward,
        "verifier_rewards": dict(result.verifier_rewards),
        "verifier_mode": result.verifier_mode,
        "turns": [_turn(turn) for turn in result.turns],
        "declared_steps": list(result.declared_steps),
        "stopped_after_turn": result.stopped_after_turn,
        "response": result.response,
        "trajectory": result.trajectory,
        "mask_sample": result.mask_sample,
        "failure_kind": result.failure_kind,
        "failure_reason": short(result.failure_reason),
        "failed_phase": result.failed_phase,
        "validated": result.validated,
        "durations": dict(result.durations),
    }


def _turn(turn: TurnResult) -> dict[str, Any]:
    row: dict[str, Any] = plain(turn)
    row["masked"] = turn.status == "masked"
    row["timed_out"] = {
        "agent": row.pop("agent_timed_out"),
        "verifier": row.pop("verifier_timed_out"),
    }
    return row


def _judged(verdict: Verdict) -> dict[str, Any]:
    return {"outcome": verdict.outcome, "message": verdict.message}


def _failure(attempt: FailedAttempt, *, final: bool) -> dict[str, Any]:
    return {
        "try": attempt.number,
        "failure_kind": attempt.failure_kind,
        "failure_reason": short(attempt.failure_reason),
        "terminal": attempt.terminal,
        "final": final,
        "started_at": attempt.started_at,
        "ended_at": attempt.started_at + attempt.seconds,
        "seconds": attempt.seconds,
        "turns": [_turn(turn) for turn in attempt.turns],
    }


def _only_failure(result: EpisodeResult) -> dict[str, Any]:
    return {
        "try": 1,
        "failure_kind": result.failure_kind,
        "failure_reason": short(result.failure_reason),
        "terminal": result.status in {"terminal", "refused", "unavailable"},
        "final": True,
        "turns": [_turn(turn) for turn in result.turns],
    }
