"""Roll-up: spec 10, its eleven worked examples first."""

from __future__ import annotations

import pytest

from pytest_harbor.episodes.result import TurnResult
from pytest_harbor.episodes.rollup import common_mode, roll_up, stopped_after


def turns_of(*outcomes):
    """Turns from rewards, tables of rewards, or statuses."""
    turns = []
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, str):
            turns.append(TurnResult(f"{index}", index, outcome))
            continue
        rewards = outcome if isinstance(outcome, dict) else {"reward": outcome}
        reward = rewards.get("reward", 0.0)
        turns.append(
            TurnResult(
                f"{index}", index, "graded", reward=reward, verifier_rewards=rewards
            )
        )
    return turns


@pytest.mark.parametrize(
    ("turns", "mean", "final"),
    [
        pytest.param((1.0, 0.5, 0.0), 0.5, 0.0, id="1"),
        pytest.param((0.4,), 0.4, 0.4, id="2"),
        pytest.param((0.9, 0.3), 0.6, 0.3, id="3"),
        pytest.param((0.8, "prepare_failed"), 0.4, 0.0, id="4"),
        pytest.param((1.0, "no_reward"), 0.5, 0.0, id="5"),
        pytest.param((1.0, 1.0, "prepare_failed"), 2 / 3, 0.0, id="6"),
        pytest.param((-1.0, 0.5, 0.5), 0.0, 0.5, id="9"),
        pytest.param(("no_reward",), 0.0, 0.0, id="10"),
        pytest.param((0.8, "counted_as_zero"), 0.4, 0.0, id="counted as zero"),
        pytest.param(("counted_as_zero",), 0.0, 0.0, id="counted as zero at once"),
        pytest.param((1.7e308, 1.7e308), 1.7e308, 1.7e308, id="near overflow"),
    ],
)
def test_graded(turns, mean, final):
    for strategy, expected in (("mean", mean), ("final", final)):
        rolled = roll_up(turns_of(*turns), strategy)
        assert rolled.status == "graded"
        assert rolled.reward == pytest.approx(expected)


@pytest.mark.parametrize("strategy", ["mean", "final"])
@pytest.mark.parametrize(
    ("turns", "status"),
    [
        pytest.param(("prepare_failed",), "terminal", id="7"),
        pytest.param((1.0, "masked"), "masked", id="8"),
        pytest.param((0.8, "agent_failed"), "ungraded", id="11"),
        pytest.param((0.8, "error"), "ungraded", id="outage"),
        pytest.param((), "ungraded", id="nothing ran"),
    ],
)
def test_without_reward(turns, status, strategy):
    rolled = roll_up(turns_of(*turns), strategy)
    assert (rolled.status, rolled.reward, rolled.verifier_rewards) == (status, None, {})


@pytest.mark.parametrize(
    ("turns", "strategy", "rewards"),
    [
        (
            ({"reward": 1.0, "lint": 0.5}, {"reward": 0.5}),
            "mean",
            {"reward": 0.75, "lint": 0.25},
        ),
        (
            ({"reward": 1.0, "lint": 0.5}, "no_reward"),
            "mean",
            {"reward": 0.5, "lint": 0.25},
        ),
        (
            ({"reward": 1.0, "lint": 0.5}, "prepare_failed"),
            "mean",
            {"reward": 0.5, "lint": 0.25},
        ),
        (({"style": 1.0}, {"reward": 1.0}), "mean", {"style": 0.5, "reward": 0.5}),
        (({"reward": 1.0, "lint": 0.5}, "no_reward"), "final", {"reward": 0.0}),
        (({"reward": 1.0}, {"a": 0.5}), "final", {"a": 0.5}),
    ],
)
def test_keys(turns, strategy, rewards):
    assert roll_up(turns_of(*turns), strategy).verifier_rewards == rewards


@pytest.mark.parametrize(
    ("modes", "common"),
    [
        (["shared", "shared"], "shared"),
        (["separate"], "separate"),
        (["shared", "separate"], "mixed"),
        (["separate", None], "separate"),
        ([None], None),
        ([], None),
    ],
)
def test_common_mode(modes, common):
    turns = [
        TurnResult(str(i), i, "graded", verifier_mode=m) for i, m in enumerate(modes)
    ]
    assert common_mode(turns) == common


@pytest.mark.parametrize(
    ("started", "declared", "after"),
    [(1, 3, "0"), (2, 3, "1"), (3, 3, None), (0, 3, None), (1, 1, None)],
)
def test_stopped_after(started, declared, after):
    assert stopped_after(turns_of(*[1.0] * started), declared) == after
