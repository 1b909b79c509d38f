"""Whether an episode is tried again (spec 17, 19.5; design 5.2). Pure.

A retry is a new episode from seed. Only what says nothing about the agent's work is
retried: never a score, a terminal failure or a refusal.
"""

from __future__ import annotations

from typing import Final

from pytest_harbor.episodes.result import EpisodeStatus

_RETRIED: Final = frozenset({"outage", "deadline"})


def is_terminal(status: EpisodeStatus, *, policy_says_retry: bool = False) -> bool:
    """True when nothing may retry an episode that ended so.

    ``policy_says_retry`` is the agent outcome policy's word on an agent's failure.
    """
    if status == "agent_failed":
        return not policy_says_retry
    return status not in _RETRIED


def tries_again(
    status: EpisodeStatus,
    *,
    number: int,
    retries: int,
    policy_says_retry: bool = False,
) -> bool:
    """True when try ``number`` (1-based) is followed by another one."""
    if is_terminal(status, policy_says_retry=policy_says_retry):
        return False
    return number <= retries
