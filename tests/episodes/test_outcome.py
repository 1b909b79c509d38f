"""Outcomes and their texts: design 4 as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_harbor.episodes.outcome import format_reward, judge
from pytest_harbor.episodes.result import EpisodeResult, FailedAttempt, TurnResult
from pytest_harbor.episodes.rollup import roll_up

NO_REWARD = (
    "no reward: test.sh ended with exit code 1 and wrote neither reward.json nor "
    "reward.txt"
)


def graded(name, index, reward, *, min_reward=None, rewards=None):
    met = None
    rewards = {"reward": reward} if rewards is None else rewards
    return TurnResult(
        name,
        index,
        "graded",
        reward=reward,
        verifier_rewards=rewards,
        min_reward=min_reward,
        min_reward_met=met,
        durations={"agent": 1.0, "verify": 0.5},
    )


def failed(name, index, status, kind, reason, reward=0.0):
    return TurnResult(
        name, index, status, reward=reward, failure_kind=kind, failure_reason=reason
    )


def episode(*turns, declared=None, status="graded", tries=0, **fields):
    names = declared or tuple(turn.name for turn in turns)
    rolled = roll_up(turns, "mean")
    attempt = FailedAttempt(1, "k", "r", False, 0.0, 0.0)
    return EpisodeResult(
        task_id="task",
        agent="mine",
        model=None,
        attempt=1,
        status=status,
        declared_steps=names,
        digest="",
        reward=rolled.reward if status == "graded" else None,
        turns=turns,
        is_multi_step=len(names) > 1,
        failed_attempts=(attempt,) * tries,
        **fields,
    )


SINGLE = [
    pytest.param(
        graded("task", 0, 1.0), 1.0, "passed", "reward 1.00 >= 1.00", id="met"
    ),
    pytest.param(graded("task", 0, 0.5), 1.0, "failed", "reward 0.50 < 1.00", id="low"),
    pytest.param(
        graded("task", 0, 0.9676), 0.96, "passed", "reward 0.97 >= 0.96", id="own"
    ),
    pytest.param(
        graded("task", 0, 1 - 1e-12),
        1.0,
        "passed",
        "reward 1.00 >= 1.00",
        id="within the tolerance",
    ),
    pytest.param(
        graded("task", 0, 0.9999),
        1.0,
        "failed",
        "reward 0.9999 < 1.0000",
        id="as many digits as it takes",
    ),
    pytest.param(
        failed("task", 0, "no_reward", "harbor:no_reward_file", NO_REWARD),
        1.0,
        "failed",
        f"reward 0.00 < 1.00: {NO_REWARD}",
        id="no reward",
    ),
    pytest.param(
        failed("task", 0, "no_reward", "harbor:no_reward_file", NO_REWARD),
        0.0,
        "failed",
        f"reward 0.00 >= 0.00, but {NO_REWARD}",
        id="no reward above the threshold",
    ),
    pytest.param(
        failed("task", 0, "counted_as_zero", "agent_run_error", "it broke"),
        1.0,
        "failed",
        "reward 0.00 < 1.00: the agent failed (agent_run_error), counted as zero: "
        "it broke",
        id="counted as zero",
    ),
]


@pytest.mark.parametrize(("turn", "threshold", "outcome", "message"), SINGLE)
def test_single_step(turn, threshold, outcome, message):
    verdict = judge(episode(turn), threshold=threshold)
    assert (verdict.outcome, verdict.message) == (outcome, message)


MULTI = [
    pytest.param(
        (graded("01", 0, 0.4, min_reward=0.5),),
        1.0,
        "reward 0.40 < 1.00: step 01 missed min_reward (0.40 < 0.50)",
        ("failed", "reward 0.40 < min_reward 0.50"),
        id="gate and threshold",
    ),
    pytest.param(
        (graded("01", 0, 1.0), graded("02", 1, 0.6, min_reward=0.8)),
        0.5,
        "reward 0.80 >= 0.50, but step 02 missed min_reward (0.60 < 0.80)",
        ("failed", "reward 0.60 < min_reward 0.80"),
        id="gate alone",
    ),
    pytest.param(
        (
            graded(
                "01",
                0,
                1.0,
                min_reward={"core": 0.5, "style": 0.2},
                rewards={"reward": 1.0, "core": 0.4},
            ),
        ),
        1.0,
        "reward 1.00 >= 1.00, but step 01 missed min_reward (core 0.40 < 0.50, "
        "no key 'style', expected 0.20)",
        ("failed", "core 0.40 < min_reward 0.50, no key 'style', min_reward 0.20"),
        id="table of gates",
    ),
    pytest.param(
        (
            graded("01", 0, 0.8),
            failed("02", 1, "prepare_failed", "harbor:step_setup_failed", "setup.sh x"),
        ),
        1.0,
        "reward 0.40 < 1.00: step 02: preparation failed: setup.sh x "
        "(harbor:step_setup_failed)",
        ("failed", "harbor:step_setup_failed: setup.sh x"),
        id="preparation of a later step",
    ),
    pytest.param(
        (graded("01", 0, 1.0), failed("02", 1, "no_reward", "k", NO_REWARD)),
        1.0,
        f"reward 0.50 < 1.00: step 02: {NO_REWARD}",
        ("failed", NO_REWARD),
        id="no reward",
    ),
]


@pytest.mark.parametrize(("turns", "threshold", "message", "row"), MULTI)
def test_step_that_ends_a_graded_episode(turns, threshold, message, row):
    result = episode(*turns, declared=("01", "02", "03"))
    verdict = judge(result, threshold=threshold)
    assert (verdict.outcome, verdict.message) == ("failed", message)
    last = len(turns) - 1
    assert (verdict.steps[last].outcome, verdict.steps[last].message) == row
    assert [step.outcome for step in verdict.steps[:last]] == ["passed"] * last
    for step in verdict.steps[last + 1 :]:
        assert step.outcome == "skipped"
        assert step.message == f"not run: stopped after {turns[-1].name}"
        assert (step.reward, step.seconds) == (None, 0.0)
    assert [step.name for step in verdict.steps] == ["01", "02", "03"]
    assert [step.index for step in verdict.steps] == [0, 1, 2]


NO_KEY = "reward.json has no key 'reward' (only 'a'); name one"


@pytest.mark.parametrize(
    ("threshold", "message"),
    [(1.0, f"reward 0.00 < 1.00: {NO_KEY}"), (0.0, "reward 0.00 >= 0.00")],
)
def test_a_missing_headline_key_says_why_the_reward_is_low(threshold, message):
    turn = graded("task", 0, 0.0, rewards={"a": 1.0})
    result = episode(replace(turn, headline_problem=NO_KEY))
    assert judge(result, threshold=threshold).message == message


def test_a_missing_headline_key_of_a_step_is_told_with_its_name():
    turn = replace(graded("01", 0, 0.0), headline_problem=NO_KEY)
    result = episode(turn, graded("02", 1, 1.0))
    message = judge(result, threshold=1.0).message
    assert message == f"reward 0.50 < 1.00: step 01: {NO_KEY}"


CRASH = {"failed_phase": "agent", "failure_kind": "agent_run_error"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {**CRASH, "failure_reason": "no\nmore"},
            "the agent failed (agent_run_error): no",
        ),
        ({"agent_timed_out": True}, "the agent ran out of time"),
    ],
)
def test_trouble_of_the_agent_says_why_the_reward_is_low(changes, why):
    turn = replace(graded("task", 0, 0.0), **changes)
    result = episode(turn)
    assert judge(result, threshold=1.0).message == f"reward 0.00 < 1.00: {why}"
    assert judge(result, threshold=0.0).message == "reward 0.00 >= 0.00"
    result = episode(graded("01", 0, 1.0), replace(turn, name="02", index=1))
    message = judge(result, threshold=1.0).message
    assert message == f"reward 0.50 < 1.00: step 02: {why}"


def test_steps_pass_when_only_the_roll_up_is_low():
    result = episode(graded("01", 0, 1.0), graded("02", 1, 0.0))
    verdict = judge(result, threshold=1.0)
    assert (verdict.outcome, verdict.message) == ("failed", "reward 0.50 < 1.00")
    assert [step.outcome for step in verdict.steps] == ["passed", "passed"]
    assert [step.message for step in verdict.steps] == ["reward 1.00", "reward 0.00"]
    assert verdict.steps[0].seconds == 1.5
    assert verdict.steps[0].reward == 1.0


ERRORS = [
    pytest.param(
        episode(
            status="refused",
            declared=("01", "02"),
            failure_kind="harbor:refused",
            failure_reason="variable 'A' is not set\nvariable 'B' is not set",
        ),
        "refused: variable 'A' is not set\nvariable 'B' is not set",
        [("skipped", "not run: variable 'A' is not set")] * 2,
        id="refused",
    ),
    pytest.param(
        episode(
            status="unavailable",
            declared=("task",),
            failure_kind="harbor:sandbox_unavailable",
            failure_reason="no Docker daemon",
        ),
        "harbor:sandbox_unavailable: no Docker daemon",
        [("skipped", "not run: no Docker daemon")],
        id="unavailable",
    ),
    pytest.param(
        episode(
            status="outage",
            declared=("task",),
            tries=2,
            failure_kind="harbor:sandbox_start_failed",
            failure_reason="no such image\nits last lines",
        ),
        "harbor:sandbox_start_failed: no such image (after 2 tries)\nits last lines",
        [("skipped", "not run: no such image")],
        id="start failed",
    ),
    pytest.param(
        episode(
            graded("01", 0, 1.0),
            failed("02", 1, "error", "harbor:sandbox_lost", "it died", None),
            declared=("01", "02", "03"),
            status="outage",
            tries=1,
            failure_kind="harbor:sandbox_lost",
            failure_reason="it died",
        ),
        "harbor:sandbox_lost: it died",
        [
            ("passed", "reward 1.00"),
            ("error", "harbor:sandbox_lost: it died"),
            ("skipped", "not run: stopped after 02"),
        ],
        id="outage",
    ),
    pytest.param(
        episode(
            failed("task", 0, "error", None, None, None),
            status="deadline",
            failure_kind="harbor:task_deadline",
            failure_reason="the episode passed its deadline of 5 s",
        ),
        "harbor:task_deadline: the episode passed its deadline of 5 s",
        [("error", "harbor:task_deadline: the episode passed its deadline of 5 s")],
        id="deadline",
    ),
    pytest.param(
        episode(
            failed("01", 0, "prepare_failed", "harbor:step_setup_failed", "x", None),
            declared=("01", "02"),
            status="terminal",
            failure_kind="harbor:step_setup_failed",
            failure_reason="step 01: x",
        ),
        "harbor:step_setup_failed: step 01: x",
        [
            ("error", "harbor:step_setup_failed: x"),
            ("skipped", "not run: stopped after 01"),
        ],
        id="preparation of the first step",
    ),
    pytest.param(
        episode(
            failed("task", 0, "agent_failed", "agent_run_error", "no key", None),
            status="agent_failed",
            failure_kind="agent_run_error",
            failure_reason="no key",
        ),
        "agent_run_error: no key",
        [("error", "agent_run_error: no key")],
        id="agent failed",
    ),
    pytest.param(
        episode(
            graded("01", 0, 1.0),
            failed("02", 1, "masked", "verifier_error", "bash not found", None),
            status="masked",
            failure_kind="verifier_error",
            failure_reason="step 02: bash not found",
        ),
        "masked: step 02: bash not found",
        [("passed", "reward 1.00"), ("error", "masked: bash not found")],
        id="masked",
    ),
]


@pytest.mark.parametrize("must_miss", [False, True])
@pytest.mark.parametrize(("result", "message", "rows"), ERRORS)
def test_infrastructure_is_an_error_whatever_is_asked(result, message, rows, must_miss):
    verdict = judge(result, threshold=0.0, must_miss=must_miss)
    assert (verdict.outcome, verdict.message) == ("error", message)
    assert [(step.outcome, step.message) for step in verdict.steps] == rows


class TestMustMiss:
    """Validation: doing nothing must not reach the threshold."""

    def test_reached(self):
        verdict = judge(episode(graded("task", 0, 1.0)), threshold=1.0, must_miss=True)
        assert verdict.outcome == "failed"
        assert (
            verdict.message
            == "reward 1.00 >= 1.00, but doing nothing must not reach it"
        )

    def test_missed(self):
        verdict = judge(episode(graded("task", 0, 0.0)), threshold=1.0, must_miss=True)
        assert (verdict.outcome, verdict.message) == ("passed", "reward 0.00 < 1.00")

    def test_no_reward_is_a_miss(self):
        turn = failed("task", 0, "no_reward", "k", NO_REWARD)
        verdict = judge(episode(turn), threshold=1.0, must_miss=True)
        assert verdict.outcome == "passed"
        assert verdict.message == f"reward 0.00 < 1.00: {NO_REWARD}"

    def test_steps_that_miss_their_gates_do_not_fail(self):
        result = episode(graded("01", 0, 0.0, min_reward=0.5), declared=("01", "02"))
        verdict = judge(result, threshold=1.0, must_miss=True)
        assert verdict.outcome == "passed"
        assert [step.outcome for step in verdict.steps] == ["passed", "skipped"]


@pytest.mark.parametrize(
    ("reward", "other", "text"),
    [
        (0.5, None, "0.50"),
        (0.5, 0.5, "0.50"),
        (0.999999, 1.0, "0.999999"),
        (1 / 3, 0.3, "0.33"),
        (-1.0, 1.0, "-1.00"),
    ],
)
def test_format_reward(reward, other, text):
    assert format_reward(reward, other) == text
