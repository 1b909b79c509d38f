"""The roll-up, from record files alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from episode_samples import make_turn

from pytest_harbor.episodes.result import FailedAttempt, TurnResult
from pytest_harbor.results import summary
from pytest_harbor.results.records import Origin, Records
from pytest_harbor.results.summary import pass_estimates

Record = Callable[..., None]


def test_counts_means_and_rates(tmp_path: Path, record: Record) -> None:
    record("a", "passed", reward=1.0)
    record("b", "failed", reward=0.5)
    record("c", "error", status="outage", reward=None)
    record("d", "skipped", status="unavailable", reward=None)
    record("e", "error", status="masked", reward=None)
    found = summary.summarize(tmp_path)
    assert (found.episodes, found.passed, found.failed) == (5, 1, 1)
    assert (found.errors, found.skipped) == (2, 1)
    assert (found.mean_reward, found.pass_rate) == (0.75, 0.5)


def test_nothing_graded_has_no_mean(tmp_path: Path, record: Record) -> None:
    record("a", "error", status="outage", reward=None)
    found = summary.summarize(tmp_path)
    assert (found.mean_reward, found.pass_rate) == (None, None)
    assert "nothing was graded" in summary.lines(found, logs="x")[0]


def test_a_rerun_replaces_the_first_run(tmp_path: Path, record: Record) -> None:
    record("a", "failed", reward=0.0, started_at=1.0)
    record("a", "error", status="outage", reward=None, started_at=10.0)
    record("a", "passed", reward=1.0, started_at=2_000_000_000.0)
    found = summary.summarize(tmp_path)
    assert (found.episodes, found.passed, found.unfinished) == (1, 1, ())


def test_what_never_ended_is_named(tmp_path: Path, record: Record) -> None:
    record("a", started_at=4_000_000_000.0)
    Records(tmp_path).started(
        origin=Origin("b", 1.0), task_id="b", agent="x", attempt=1, sandbox="local"
    )
    found = summary.summarize(tmp_path)
    assert found.unfinished == ("b",)
    assert "started, not finished: b" in summary.lines(found, logs="x")


def test_agents_have_a_line_each(tmp_path: Path, record: Record) -> None:
    record("a[x-1]", "passed", agent="x", model="big", reward=1.0)
    record("a[x-2]", "failed", agent="x", model="big", reward=0.0, attempt=2)
    record("a[y-1]", "failed", agent="y", reward=0.2)
    text = summary.lines(summary.summarize(tmp_path), logs="x")
    assert (
        "x (big): 1 of 2 passed, mean reward 0.50, pass rate 50%, "
        "pass@2 1.00, pass^2 0.00"
    ) in text
    assert "y: 0 of 1 passed, mean reward 0.20, pass rate 0%" in text


def test_what_agents_used_is_added_up() -> None:
    turns = [
        {"agent_steps": 3, "input_tokens": 1000, "output_tokens": 20, "cost_usd": 0.25},
        {"agent_steps": 1, "input_tokens": 500, "output_tokens": None, "cost_usd": 0.5},
    ]
    common = {"node_id": "a[x]", "agent": "x", "attempt": 1, "outcome": "passed"}
    rows = [
        {**common, "reward": 1.0, "turns": turns[:1]},
        {**common, "turns": turns[1:]},
    ]
    found = summary._agent("x", rows, rows)
    assert (found.agent_steps, found.input_tokens, found.output_tokens) == (4, 1500, 20)
    line = summary._agent_line(found)
    assert line.endswith("; 4 agent steps, 1,500 tokens in, 20 out, $0.75")
    nothing = [{**common, "reward": 1.0, "turns": [{}]}]
    silent = summary._agent("x", nothing, nothing)
    assert silent.input_tokens is None
    assert ";" not in summary._agent_line(silent)


def test_what_failed_tries_and_reruns_used_was_spent_too(
    tmp_path: Path, record: Record
) -> None:
    def turn(tokens: int) -> TurnResult:
        return make_turn(input_tokens=tokens)

    lost = FailedAttempt(
        number=1,
        failure_kind="outage",
        failure_reason="gone",
        terminal=False,
        started_at=1.0,
        seconds=1.0,
        turns=(turn(1),),
    )
    graded = {"agent": "x", "failed_attempts": (lost,)}
    record("a[x]", "failed", reward=0.0, turns=(turn(10),), **graded)
    record("a[x]", "passed", turns=(turn(100),), started_at=2_000_000_000.0, agent="x")
    [agent] = summary.summarize(tmp_path).agents
    assert (agent.episodes, agent.input_tokens) == (1, 111)


def test_slowest_isolation_and_kept(tmp_path: Path, record: Record) -> None:
    for number in range(5):
        record(f"n{number}", seconds=float(number), isolation="walls")
    record("k", kept_sandboxes=("enter it so",))
    text = summary.lines(summary.summarize(tmp_path), logs="here")
    assert [line for line in text if line.startswith("slowest")] == [
        "slowest: 4.0 s n4",
        "slowest: 3.0 s n3",
        "slowest: 2.0 s k",
    ]
    assert "sandbox: local (walls)" in text
    assert "kept: enter it so" in text
    assert text[-1] == "results: here"


@pytest.mark.parametrize(
    ("tasks", "k", "at_k", "hat_k"),
    [
        ([(1, 1)], 1, 1.0, 1.0),
        ([(2, 1)], 2, 1.0, 0.0),
        ([(2, 1)], 1, 0.5, 0.5),
        ([(4, 2)], 2, 1 - 1 / 6, 1 / 6),
        ([(2, 2), (2, 0)], 2, 0.5, 0.5),
        ([(1, 1), (2, 2)], 2, 1.0, 1.0),  # one attempt had an outage: left out
        ([(1, 1)], 2, None, None),
        ([], 1, None, None),
    ],
)
def test_pass_estimates(
    tasks: list[tuple[int, int]], k: int, at_k: float | None, hat_k: float | None
) -> None:
    found = pass_estimates(tasks, k)
    assert found == (pytest.approx(at_k), pytest.approx(hat_k))


def test_summary_json_can_be_made_again(tmp_path: Path, record: Record) -> None:
    record("a")
    first = summary.write(tmp_path)
    (tmp_path / summary.SUMMARY).unlink()
    assert summary.write(tmp_path) == first
    data = json.loads((tmp_path / summary.SUMMARY).read_text())
    assert data["episodes"] == 1
    assert data["agents"][0]["agent"] == "oracle"


def test_limits_that_are_none_are_told_once(tmp_path: Path, record: Record) -> None:
    line = "not enforced: storage_mb (docker: no quota)"
    for name in "ab":
        record(name, "passed", reward=1.0, warnings=("something else", line))
    found = summary.summarize(tmp_path)
    assert summary.lines(found, logs="x").count(line) == 1
    assert "something else" not in summary.lines(found, logs="x")
