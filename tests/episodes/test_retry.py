"""What is tried again (spec 17, 19.5)."""

from __future__ import annotations

import pytest

from pytest_harbor.episodes.retry import is_terminal, tries_again

RETRIED = ["outage", "deadline"]
FINAL = ["graded", "masked", "terminal", "refused", "unavailable", "cancelled"]


@pytest.mark.parametrize("status", RETRIED)
def test_infrastructure_is_retried_while_retries_last(status):
    assert tries_again(status, number=1, retries=1)
    assert not tries_again(status, number=2, retries=1)
    assert not tries_again(status, number=1, retries=0)
    assert tries_again(status, number=3, retries=3)
    assert not is_terminal(status)


@pytest.mark.parametrize("status", FINAL)
def test_scores_and_refusals_never_are(status):
    assert not tries_again(status, number=1, retries=9, policy_says_retry=True)
    assert is_terminal(status)


@pytest.mark.parametrize("policy_says_retry", [True, False])
def test_the_policy_decides_about_the_agent(policy_says_retry):
    again = tries_again(
        "agent_failed", number=1, retries=1, policy_says_retry=policy_says_retry
    )
    assert again is policy_says_retry
    terminal = is_terminal("agent_failed", policy_says_retry=policy_says_retry)
    assert terminal is not policy_says_retry
