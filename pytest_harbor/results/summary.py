"""The roll-up of a run, rebuilt from its record files alone.

Only what is on disk counts, so it is the same with and without workers, and can be made
again later from a killed run's folder.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any, Final

from pytest_harbor.episodes.sandbox_set import NOT_ENFORCED, NOT_KEPT
from pytest_harbor.errors import CANCELLED
from pytest_harbor.results import records

SUMMARY: Final = "summary.json"
SLOWEST: Final = 3
SAID_ONCE: Final = (NOT_KEPT, NOT_ENFORCED)
"""Beginnings of warnings of episodes that the roll-up says, each once."""

USED: Final = ("agent_steps", "input_tokens", "output_tokens", "cost_usd")
"""Fields of a turn that are added up per agent."""


@dataclass(frozen=True)
class AgentSummary:
    """What one agent (and model) came to. Rates are between 0 and 1.

    ``pass_at_k`` and ``pass_hat_k`` are there with several attempts: the chance that at least one
    of k attempts passes, and that all k do, as a mean over tasks.
    """

    agent: str
    episodes: int
    passed: int
    failed: int
    errors: int
    skipped: int
    mean_reward: float | None
    pass_rate: float | None
    xfailed: int = 0
    xpassed: int = 0
    attempts: int = 1
    pass_at_k: float | None = None
    pass_hat_k: float | None = None
    agent_steps: int | None = None
    """These and what follows: over all of its turns, those of tries that failed and of runs
    before a rerun included; ``None`` when it never says."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


@dataclass(frozen=True)
class Summary:
    """A whole run. ``episodes`` counts those that ended, graded or not.

    Mean reward and pass rate are over graded episodes: infrastructure trouble says nothing
    about an agent. Those that an ``xfail`` mark expects to fail are ``xfailed`` or ``xpassed``
    instead of failed or passed, and count in both. ``unfinished`` started and never ended,
    ``interrupted`` were cancelled (Ctrl-C, a time limit of the item).
    """

    run_id: str
    episodes: int
    passed: int
    failed: int
    errors: int
    skipped: int
    mean_reward: float | None
    pass_rate: float | None
    seconds: float
    agents: tuple[AgentSummary, ...]
    slowest: tuple[tuple[str, float], ...]
    unfinished: tuple[str, ...]
    isolation: tuple[str, ...]
    kept_sandboxes: tuple[str, ...]
    xfailed: int = 0
    xpassed: int = 0
    interrupted: tuple[str, ...] = ()
    not_kept: tuple[str, ...] = ()
    """Why ``--harbor-keep`` kept nothing, each reason once."""
    not_enforced: tuple[str, ...] = ()
    """Limits that some sandbox did not enforce, each once."""


def summarize(folder: Path) -> Summary:
    """Read the record files of a run folder."""
    ended = latest_rows(folder)
    rows = list(ended.values())
    started: dict[str, float] = {}
    for row in records.read(folder / records.STARTED):
        started[row["node_id"]] = row["started_at"]
    unfinished = sorted(
        node
        for node, at in started.items()
        if node not in ended or at > float(ended[node]["ended_at"])
    )
    by_agent = _by_agent(rows)
    # What a try or a rerun cost was spent, whether it counts as a result or not.
    spent = _by_agent(
        row
        for name in (records.ROLLOUTS, records.FAILURES)
        for row in records.read(folder / name)
    )
    times = sorted(
        ((row["node_id"], float(row["seconds"])) for row in rows if row["seconds"]),
        key=lambda pair: (-pair[1], pair[0]),
    )
    counts = _counts(rows)
    return Summary(
        run_id=folder.name,
        episodes=len(rows),
        **counts,
        mean_reward=_mean_reward(rows),
        pass_rate=_pass_rate(rows),
        seconds=sum(float(row["seconds"]) for row in rows),
        agents=tuple(
            _agent(name, by_agent[name], spent[name]) for name in sorted(by_agent)
        ),
        slowest=tuple(times[:SLOWEST]),
        unfinished=tuple(unfinished),
        isolation=tuple(sorted({i for row in rows if (i := _isolation(row))})),
        kept_sandboxes=tuple(
            line for row in rows for line in row.get("kept_sandboxes") or ()
        ),
        interrupted=tuple(
            row["node_id"] for row in rows if row.get("failure_kind") == CANCELLED
        ),
        not_kept=_warnings(rows, NOT_KEPT),
        not_enforced=_warnings(rows, NOT_ENFORCED),
    )


def _warnings(rows: Sequence[dict[str, Any]], kind: str) -> tuple[str, ...]:
    """Warnings that begin with ``kind``, each once."""
    lines = (line for row in rows for line in row.get("warnings") or ())
    return tuple(dict.fromkeys(line for line in lines if line.startswith(kind)))


def latest_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Per node ID, the row of its last episode: a rerun replaces what went before."""
    ended: dict[str, dict[str, Any]] = {}
    candidates = list(records.read(folder / records.ROLLOUTS)) + [
        {"outcome": "error", **row}
        for row in records.read(folder / records.FAILURES)
        if row.get("final")
    ]
    for row in sorted(candidates, key=lambda row: float(row["ended_at"])):
        ended[row["node_id"]] = row
    return dict(sorted(ended.items()))


def _by_agent(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    by_agent: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row.get("agent"):
            by_agent[_agent_label(row)].append(row)
    return by_agent


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    counted = Counter(_outcome(row) for row in rows)
    names = ("passed", "failed", "skipped", "xfailed", "xpassed")
    return {"errors": counted["error"], **{name: counted[name] for name in names}}


def _outcome(row: dict[str, Any]) -> str:
    outcome = str(row["outcome"])
    if row.get("is_xfail") and outcome in {"passed", "failed"}:
        return f"x{outcome}"
    return outcome


def _graded(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["outcome"] in {"passed", "failed"}]


def _mean_reward(rows: Sequence[dict[str, Any]]) -> float | None:
    rewards = [
        float(row["reward"]) for row in _graded(rows) if row.get("reward") is not None
    ]
    return sum(rewards) / len(rewards) if rewards else None


def _pass_rate(rows: Sequence[dict[str, Any]]) -> float | None:
    graded = _graded(rows)
    passed = sum(1 for row in graded if row["outcome"] == "passed")
    return passed / len(graded) if graded else None


def _agent_label(row: dict[str, Any]) -> str:
    model = row.get("model")
    return f"{row['agent']} ({model})" if model else str(row["agent"])


def _isolation(row: dict[str, Any]) -> str:
    sandbox, isolation = row.get("sandbox"), row.get("isolation")
    if not sandbox:
        return ""
    return f"{sandbox} ({isolation})" if isolation else str(sandbox)


def _agent(
    name: str, rows: Sequence[dict[str, Any]], spent: Sequence[dict[str, Any]]
) -> AgentSummary:
    by_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _graded(rows):
        by_task[row["node_id"].partition("[")[0]].append(row)
    attempts = max((int(row["attempt"] or 1) for row in rows), default=1)
    at_k, hat_k = pass_estimates(
        [
            (len(group), sum(1 for row in group if row["outcome"] == "passed"))
            for group in by_task.values()
        ],
        attempts,
    )
    return AgentSummary(
        agent=name,
        episodes=len(rows),
        **_counts(rows),
        mean_reward=_mean_reward(rows),
        pass_rate=_pass_rate(rows),
        attempts=attempts,
        pass_at_k=at_k if attempts > 1 else None,
        pass_hat_k=hat_k if attempts > 1 else None,
        **{what: _used(spent, what) for what in USED},
    )


def _used(rows: Sequence[dict[str, Any]], name: str) -> Any:
    """What was used of something; unknown where no turn says."""
    numbers = [
        turn[name]
        for row in rows
        for turn in row.get("turns") or ()
        if turn.get(name) is not None
    ]
    return sum(numbers) if numbers else None


def pass_estimates(
    tasks: Sequence[tuple[int, int]], k: int
) -> tuple[float | None, float | None]:
    """Mean pass@k and pass^k over tasks given as (graded attempts, passed ones).

    pass@k is the unbiased ``1 - C(n-c, k) / C(n, k)``, pass^k ``C(c, k) / C(n, k)``. A task with fewer
    than k graded attempts cannot be judged and is left out.
    """
    known = [(n, c) for n, c in tasks if n >= k]
    if not known:
        return None, None
    at_k = [1 - comb(n - c, k) / comb(n, k) for n, c in known]
    hat_k = [comb(c, k) / comb(n, k) for n, c in known]
    return sum(at_k) / len(known), sum(hat_k) / len(known)


def write(folder: Path) -> Summary:
    """Write ``summary.json`` beside the record files."""
    summary = summarize(folder)
    records.write_json(folder / SUMMARY, summary)
    return summary


def lines(summary: Summary, *, logs: str) -> list[str]:
    """The roll-up for people. ``logs`` is where the run folder is."""
    text = [
        f"{_counted(summary.episodes, 'episode')}: {summary.passed} passed, "
        f"{summary.failed} failed, {_counted(summary.errors, 'error')}"
        + "".join(
            f", {number} {what}"
            for what, number in (
                ("skipped", summary.skipped),
                ("xfailed", summary.xfailed),
                ("xpassed", summary.xpassed),
            )
            if number
        )
        + f"; {_scores(summary.mean_reward, summary.pass_rate)}"
    ]
    text += [_agent_line(agent) for agent in summary.agents]
    text += [
        f"slowest: {seconds:.1f} s {node_id}"
        for node_id, seconds in summary.slowest
        if seconds >= 1.0
    ]
    text += [f"started, not finished: {node}" for node in summary.unfinished]
    text += [f"interrupted: {node}" for node in summary.interrupted]
    text += [f"sandbox: {line}" for line in summary.isolation]
    text += [f"kept: {line}" for line in summary.kept_sandboxes]
    text += (*summary.not_kept, *summary.not_enforced)
    return [*text, f"results: {logs}"]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _scores(mean: float | None, rate: float | None) -> str:
    if mean is None or rate is None:
        return "nothing was graded"
    return f"mean reward {mean:.2f}, pass rate {100 * rate:.0f}%"


def _agent_line(agent: AgentSummary) -> str:
    line = (
        f"{agent.agent}: {agent.passed} of {agent.episodes} passed, "
        f"{_scores(agent.mean_reward, agent.pass_rate)}"
    )
    if agent.pass_at_k is not None and agent.pass_hat_k is not None:
        k = agent.attempts
        line += f", pass@{k} {agent.pass_at_k:.2f}, pass^{k} {agent.pass_hat_k:.2f}"
    return line + _use(agent)


def _use(agent: AgentSummary) -> str:
    parts = []
    if agent.agent_steps is not None:
        parts.append(f"{agent.agent_steps:,} agent steps")
    if agent.input_tokens is not None or agent.output_tokens is not None:
        parts.append(
            f"{agent.input_tokens or 0:,} tokens in, {agent.output_tokens or 0:,} out"
        )
    if agent.cost_usd is not None:
        parts.append(f"${agent.cost_usd:,.2f}")
    return f"; {', '.join(parts)}" if parts else ""
