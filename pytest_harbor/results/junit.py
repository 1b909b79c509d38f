"""What JUnit XML says of an episode: plain text and numbers, ready for any process.

Order and names of the properties are those of design 5.4. Values that are unknown are
left out. pytest-xdist sends properties between processes, so only str, int and float occur.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pytest_harbor.results.run_folder import relative_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_harbor.episodes.result import EpisodeResult
    from pytest_harbor.graphs.result import StepRunResult
    from pytest_harbor.results.summary import Summary

PREFIX: Final = "harbor."
Property: TypeAlias = "tuple[str, str | int | float]"

_FORBIDDEN: Final = re.compile(
    "[^\t\n\r\u0020-\u007e\u0085\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)


def clean(text: str) -> str:
    """``text`` without what XML 1.0 forbids or discourages, escapes in its place."""
    return _FORBIDDEN.sub(lambda found: f"#x{ord(found[0]):02X}", text)


def properties(
    result: EpisodeResult, *, min_reward: float, root: Path
) -> list[Property]:
    """The properties of an episode's test case, in order."""
    found: list[tuple[str, object]] = [
        ("task", result.task_id),
        ("agent", result.agent),
        ("model", result.model),
        ("sandbox", result.sandbox),
        ("attempt", result.attempt),
        ("reward", result.reward),
    ]
    found += [
        (f"reward.{key}", result.verifier_rewards[key])
        for key in sorted(result.verifier_rewards)
        if key != "reward"
    ]
    found += [
        ("min_reward", min_reward),
        ("verifier_mode", result.verifier_mode),
        ("stopped_after_turn", result.stopped_after_turn),
        ("failure_kind", failure_kind(result)),
    ]
    if result.is_multi_step:
        for turn in result.turns:
            found.append((f"turn.{turn.name}.reward", turn.reward))
            found.append((f"turn.{turn.name}.seconds", round(turn.seconds, 3)))
    found += [
        ("digest", result.digest or None),
        ("logs", relative_to(result.logs, root) if result.logs else None),
        ("seconds", round(result.seconds, 3)),
    ]
    return _present(found)


def step_task_properties(
    result: StepRunResult, *, attempt: int, min_reward: float, root: Path
) -> list[Property]:
    """The properties of a step task's test case, in order."""
    found: list[tuple[str, object]] = [
        ("task", result.task_id),
        ("model", result.model),
        ("sandbox", ", ".join(result.sandboxes) or None),
        ("attempt", attempt),
        ("reward", result.reward),
        ("min_reward", min_reward),
        ("failure_kind", result.failure_kind),
    ]
    entries: Any = result.context.metadata.get("verifications") or {}
    for verifier, entry in entries.items():
        found.append((f"score.{verifier}", entry.get("score")))
        found += [
            (f"score.{verifier}.{row.get('id')}", row.get("score", row.get("result")))
            for row in entry.get("results") or ()
        ]
    found += [
        ("logs", relative_to(result.logs, root) if result.logs else None),
        ("seconds", round(result.seconds, 3)),
    ]
    return _present(found)


def _present(found: Iterable[tuple[str, object]]) -> list[Property]:
    return [
        (PREFIX + clean(name), _value(value))
        for name, value in found
        if value is not None
    ]


def failure_kind(result: EpisodeResult) -> str | None:
    """The episode's failure kind, else that of its last turn (no reward file)."""
    if result.failure_kind:
        return result.failure_kind
    return result.turns[-1].failure_kind if result.turns else None


def suite_properties(summary: Summary) -> list[tuple[str, str]]:
    """The properties of the whole test suite."""
    found = [
        ("mean_reward", _rounded(summary.mean_reward)),
        ("pass_rate", _rounded(summary.pass_rate)),
        ("episodes", str(summary.episodes)),
        ("errors", str(summary.errors)),
    ]
    return [(PREFIX + name, value) for name, value in found if value is not None]


def without_ours(existing: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Drop our properties: pytest-rerunfailures runs the same item object again."""
    return [(name, value) for name, value in existing if not name.startswith(PREFIX)]


def step_name(node_name: str, step: str) -> str:
    """The last part of a step's node ID: ``my-task[oracle]`` gives ``my-task::02[oracle]``."""
    base, bracket, rest = node_name.partition("[")
    return f"{base}::{step}{bracket}{rest}"


def step_properties(step: Mapping[str, Any]) -> list[Property]:
    """The properties of a step's own test case."""
    reward = step.get("reward")
    return [] if reward is None else [(PREFIX + "reward", _value(reward))]


def _rounded(value: float | None) -> str | None:
    return None if value is None else str(round(value, 6))


def _value(value: object) -> str | int | float:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return clean(str(value))
