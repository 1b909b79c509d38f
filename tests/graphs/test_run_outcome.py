"""The outcome of a run: the table of the format, and the scalar reward."""

from __future__ import annotations

import pytest

from pytest_harbor.errors import (
    AgentError,
    NotDeployed,
    SandboxLost,
    ServerNotReady,
    ServerUnreachable,
    StepError,
)
from pytest_harbor.graphs import outcome as subject


def metadata(*failed, **scores):
    entries = {name: {"score": score, "results": []} for name, score in scores.items()}
    return {"verifications": entries, "failed_steps": list(failed)}


FAILED = {"step_id": "a", "is_fatal": True}
TOLERATED = {"step_id": "a", "is_fatal": False}
RETRIED = {"step_id": "a", "is_fatal": False, "retried": True}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, "unscored"),
        (metadata(), "unscored"),
        (metadata(a=1), "passed"),
        (metadata(a=1.0, b=1.5), "passed"),
        (metadata(a=1 - 1e-12), "passed"),
        (metadata(a=1, b=0.99), "scored_below"),
        (metadata(a=0), "scored_below"),
        (metadata(FAILED, a=1), "failed"),
        (metadata(TOLERATED, a=1), "failed"),
        (metadata(RETRIED, a=1), "passed"),
        (metadata(RETRIED, TOLERATED), "failed"),
        (metadata(RETRIED), "unscored"),
    ],
)
def test_outcome(data, expected):
    assert subject.outcome(data) == expected


def test_an_error_beside_the_steps_fails_the_run():
    assert subject.outcome(metadata(a=1), has_error=True) == "failed"


def test_the_threshold_can_be_lower():
    assert subject.outcome(metadata(a=0.5, b=0.6), threshold=0.5) == "passed"
    assert subject.outcome(metadata(a=0.5, b=0.4), threshold=0.5) == "scored_below"


def aggregate(data, name):
    data["verifications"][name]["verifier_ids"] = ["a"]
    return data


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, None),
        (metadata(FAILED), None),
        (metadata(a=0.4), 0.4),
        (metadata(a=0.4, b=0.2), 0.2),
        (metadata(FAILED, a=0.4), 0.4),
        (aggregate(metadata(a=0.4, b=0.2, all=0.3), "all"), 0.3),
        (aggregate(aggregate(metadata(a=0.4, b=0.2, all=0.3), "all"), "a"), 0.2),
    ],
)
def test_reward(data, expected):
    assert subject.reward(data) == expected


def test_the_reward_object_has_each_score():
    assert subject.scores(metadata(a=1, b=0.5)) == {"a": 1.0, "b": 0.5}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StepError("x"), False),
        (NotDeployed("x"), False),
        (AgentError("x"), False),
        (AgentError("x", "agent_request_failed"), False),
        (ServerNotReady("x"), True),
        (ServerUnreachable("x"), True),
        (SandboxLost("x"), True),
        (ZeroDivisionError("x"), True),
    ],
)
def test_the_agent_is_not_blamed_for_infrastructure(error, expected):
    assert subject.is_infrastructure(error) is expected


def test_what_is_no_error_of_ours_is_an_internal_one():
    assert subject.failure_kind(KeyError("x")) == "harbor:internal_error"
    assert subject.failure_kind(ServerNotReady("x")) == "harbor:server_not_ready"
