"""Early stop: spec 11, its eight worked examples first."""

from __future__ import annotations

import pytest

from pytest_harbor.episodes.gates import (
    GateMiss,
    gate_met,
    missed_gates,
    stops_episode,
)
from pytest_harbor.episodes.result import TurnResult


@pytest.mark.parametrize(
    ("rewards", "minimum", "met"),
    [
        ({"reward": 0.5}, 0.5, True),
        ({"reward": 0.49}, 0.5, False),
        ({"core": 1.0}, 0.5, False),
        ({"reward": 1.0, "core_pass_rate": 0.4}, {"core_pass_rate": 0.5}, False),
        ({"reward": 0.0, "core_pass_rate": 0.5}, {"core_pass_rate": 0.5}, True),
        ({"reward": -0.5}, -1, True),
        ({"style": 1.0}, -1, False),
        ({"reward": 0.0}, {}, True),
        ({"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 0.5}, False),
        ({"reward": 0.0}, None, None),
    ],
)
def test_gate(rewards, minimum, met):
    assert gate_met(rewards, minimum) is met


def test_every_missed_key_is_named():
    assert missed_gates({"a": 0.1}, {"a": 0.5, "b": 0.5, "c": 0}) == (
        GateMiss("a", 0.1, 0.5),
        GateMiss("b", None, 0.5),
        GateMiss("c", None, 0.0),
    )


@pytest.mark.parametrize(
    ("status", "met", "stops"),
    [
        ("graded", None, False),
        ("graded", True, False),
        ("graded", False, True),
        ("no_reward", None, True),
        ("no_reward", True, True),
        ("prepare_failed", None, True),
        ("counted_as_zero", None, True),
        ("agent_failed", None, True),
        ("masked", None, True),
        ("error", None, True),
    ],
)
def test_what_stops_an_episode(status, met, stops):
    turn = TurnResult("01", 0, status, min_reward_met=met)
    assert stops_episode(turn) is stops
