"""What a failed or broken episode tells a person: short, the reason first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_harbor.results.run_folder import relative_to

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pytest_harbor.episodes.result import EpisodeResult, TurnResult
    from pytest_harbor.verdicts import Verdict
    from pytest_harbor.verification.ctrf import InnerTest

TAIL_LINES: Final = 30
INNER_TESTS: Final = 10
SHOWN_SECONDS: Final = 0.05  # less rounds to 0.0
PHASES: Final = ("prepare", "agent", "collect", "verify")


def failure_text(
    result: EpisodeResult, verdict: Verdict, *, root: Path, told: Collection[str] = ()
) -> str:
    """The verdict's message, times, the turn table, the verifier's last lines, logs.

    ``told`` are warnings that need no second word.
    """
    blocks = [verdict.message]
    if times := _times(result):
        blocks.append(times)
    if result.is_multi_step and result.turns:
        blocks.append("\n".join(_turn_table(result, verdict)))
    if result.turns:
        last = result.turns[-1]
        blocks += _verifier(last, f" of {last.name}" if result.is_multi_step else "")
    blocks += [f"warning: {line}" for line in run_warnings(result, told)]
    if result.kept_sandboxes:
        blocks += [f"kept: {line}" for line in result.kept_sandboxes]
    if result.logs is not None:
        blocks.append(f"logs: {relative_to(result.logs, root)}")
    return "\n".join(blocks)


def _times(result: EpisodeResult) -> str:
    parts = [
        f"{name} {result.durations[name]:.1f} s"
        for name in ("seed", *PHASES, "cleanup")
        if result.durations.get(name, 0.0) >= SHOWN_SECONDS
    ]
    return "times: " + ", ".join(parts) if parts else ""


def _turn_table(result: EpisodeResult, verdict: Verdict) -> Iterator[str]:
    started = {turn.name: turn for turn in result.turns}
    width = max(len(name) for name in ("step", *result.declared_steps))
    yield f"{'step':<{width}}  {'reward':>6}  {'seconds':>7}  outcome"
    for step in verdict.steps:
        turn = started.get(step.name)
        reward = "-" if turn is None or turn.reward is None else f"{turn.reward:.2f}"
        seconds = "-" if turn is None else f"{turn.seconds:.1f}"
        line = f"{step.name:<{width}}  {reward:>6}  {seconds:>7}  {step.outcome}"
        # That a step passed says its reward, which has a column of its own.
        why = "" if step.outcome == "passed" else step.message
        first = why.splitlines()[0] if why else ""
        yield f"{line}: {first}" if first else line


def _verifier(turn: TurnResult, whose: str) -> list[str]:
    blocks = []
    if turn.verifier_exit_code is not None:
        blocks.append(f"verifier{whose}: exit code {turn.verifier_exit_code}")
    if turn.verifier_timed_out:
        blocks.append(f"verifier{whose}: ran out of time")
    if bad := [test for test in turn.inner_tests if test.status != "passed"]:
        blocks += _inner(bad)
    tail = turn.verifier_output_tail.splitlines()[-TAIL_LINES:]
    if tail:
        blocks.append(f"last lines of the verifier{whose} (at most {TAIL_LINES}):")
        blocks += [f"  {line}" for line in tail]
    return blocks


def run_warnings(result: EpisodeResult, told: Collection[str] = ()) -> Iterator[str]:
    """What the episode and its turns warned of, a step's with its name.

    ``told`` are warnings that people have read elsewhere, as when tasks were collected. So
    is what the roll-up of the run says once for all episodes.
    """
    from pytest_harbor.results.summary import SAID_ONCE

    for line in result.warnings:
        if line not in told and not line.startswith(SAID_ONCE):
            yield line
    for turn in result.turns:
        step = f"{turn.name}: " if result.is_multi_step else ""
        yield from (f"{step}{line}" for line in turn.warnings)


def _inner(tests: Sequence[InnerTest]) -> list[str]:
    lines = []
    for test in tests[:INNER_TESTS]:
        message = test.message.strip().splitlines()
        lines.append(
            f"{test.status}: {test.name}" + (f": {message[0]}" if message else "")
        )
    if len(tests) > INNER_TESTS:
        lines.append(f"and {len(tests) - INNER_TESTS} more")
    return lines
