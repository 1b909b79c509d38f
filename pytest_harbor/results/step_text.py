"""What a failed or broken run of a step task tells a person: short, the reason first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_harbor.results.run_folder import relative_to

if TYPE_CHECKING:
    from pytest_harbor.graphs.result import StepRunResult
    from pytest_harbor.verdicts import Verdict

WIDTH: Final = 100
REPLY_LINES: Final = 10


def step_text(result: StepRunResult, verdict: Verdict, *, root: Path) -> str:
    """The verdict's message, the steps, what verifiers said, the last reply, logs."""
    blocks = [verdict.message, *_steps(result, verdict), *verifier_rows(result)]
    if verdict.outcome != "passed":
        blocks += _last_reply(result)
    blocks += [
        f"warning: {line}"
        for line in step_warnings(result)
        if line not in verdict.message
    ]
    if result.logs is not None:
        blocks.append(f"logs: {relative_to(result.logs, root)}")
    return "\n".join(blocks)


def step_warnings(result: StepRunResult) -> Iterator[str]:
    """What the run and its steps warned of, a step's with its ID."""
    yield from result.warnings
    for step in result.steps:
        yield from (f"{step.id}: {line}" for line in step.warnings)


def _steps(result: StepRunResult, verdict: Verdict) -> Iterator[str]:
    if all(step.status == "not_run" for step in result.steps):
        return  # refused: the message has all there is to say
    width = max(len(name) for name in ("step", *(step.id for step in result.steps)))
    types = max(len(name) for name in ("type", *(step.type for step in result.steps)))
    yield f"{'step':<{width}}  {'type':<{types}}  {'seconds':>7}  outcome"
    for step, given in zip(result.steps, verdict.steps, strict=True):
        seconds = f"{step.seconds:.1f}" if step.executions else "-"
        line = (
            f"{step.id:<{width}}  {step.type:<{types}}  {seconds:>7}  {given.outcome}"
        )
        again = f" (run {step.executions} times)" if step.executions > 1 else ""
        # The whole of the error is in the first line of the text already, or in the step's row.
        why = given.message.splitlines()[0] if given.message else ""
        yield _short(f"{line}{again}: {why}" if why else f"{line}{again}")


def verifier_rows(result: StepRunResult) -> Iterator[str]:
    """Each verifier's score, and what it decided of each criterion."""
    entries: Any = result.context.metadata.get("verifications") or {}
    for verifier, entry in entries.items():
        score = entry.get("score")
        shown = "no score" if score is None else f"{score:.2f}"
        yield f"verifier {verifier}: {shown}"
        for row in entry.get("results") or ():
            yield _row(row)


def _row(row: Mapping[str, Any]) -> str:
    mark = "pass" if row.get("result") else "FAIL"
    what = row.get("criterion") or row.get("description") or row.get("message") or ""
    line = f"  {mark}  {row.get('id')}: {_one_line(str(what))}"
    if reason := row.get("justification"):
        line += f" [{_one_line(str(reason))}]"
    return _short(line, 2 * WIDTH)


def _last_reply(result: StepRunResult) -> Iterator[str]:
    if not result.context.prompt_responses:
        return
    reply = result.context.prompt_responses[-1]
    if not reply.response:
        return
    lines = reply.response.splitlines()
    yield f"last reply ({reply.prompt_id}):"
    yield from (f"  {_short(line)}" for line in lines[:REPLY_LINES])
    if len(lines) > REPLY_LINES:
        yield f"  ... {len(lines) - REPLY_LINES} more lines"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _short(text: str, width: int = 2 * WIDTH) -> str:
    return text if len(text) <= width else text[: width - 4] + " ..."
