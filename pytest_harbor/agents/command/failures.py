"""What made a command fail, read from what it printed. Pure.

A declaration's own classifier is asked first; this is what is left when it does not know. CLIs
print a request's error in words of their own, so only what is unmistakable is taken for one,
and only of a command that failed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from pytest_harbor.agents.command.declaration import CommandRun, FailureClassifier
from pytest_harbor.errors import (
    AGENT_AUTH_ERROR,
    AGENT_CONFIG_ERROR,
    AGENT_RATE_LIMITED,
    AGENT_REQUEST_FAILED,
    AGENT_RUN_ERROR,
    AgentError,
)

SHOWN_CHARS: Final = 600
_READ_CHARS: Final = 20_000
"""Of the end of each stream: what ended a run is said last."""
_LAST_WORDS_CHARS: Final = 4_000
"""Of that, what is read without rules of the declaration's own: further up stands what the
agent's tools printed, and a task may be about servers that refuse."""

NOT_FOUND_TEXT: Final = "pytest-harbor: no such command in the sandbox:"
"""Printed by :mod:`.agent`'s own wrapper."""


@dataclass(frozen=True)
class FailureRule:
    """One way to fail: what the output has, or the exit code, and what that means."""

    pattern: str = ""
    """A regular expression, searched in the end of both streams; empty: any output."""
    exit_code: int | None = None
    kind: str = AGENT_RUN_ERROR
    status: int | None = None

    def matches(self, run: CommandRun, text: str) -> bool:
        """Whether the run ended so."""
        if self.exit_code is not None and run.exit_code != self.exit_code:
            return False
        return re.search(self.pattern, text) is not None


def _status(number: str, words: str) -> str:
    """A status as people write it: a number alone may be of a line, or a time."""
    before = r"\b(?:http(?:/[\d.]+)?|(?:status[_ ]?)?code|status|error)\W{1,4}(?:code\W{0,3})?"
    return rf"(?:{before}{number}\b|\b{number}\W{{1,3}}(?:{words}))"


_REQUESTS: Final = (
    FailureRule(
        rf"(?i){_status('429', 'too many')}|\brate.?limit|too many requests|\boverloaded|quota exceeded",
        kind=AGENT_RATE_LIMITED,
        status=429,
    ),
    FailureRule(
        rf"(?i){_status('401', 'unauth')}|unauthorized|unauthenticated|(invalid|incorrect) api.?key"
        r"|authentication.?(error|failed)",
        kind=AGENT_AUTH_ERROR,
        status=401,
    ),
    FailureRule(
        r"(?i)ECONNREFUSED|ECONNRESET|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|getaddrinfo"
        r"|could not resolve|name resolution|connection (refused|reset|error)"
        r"|network is unreachable|fetch failed|service unavailable"
        rf"|{_status('50[0234]', 'internal server|bad gateway|gateway time')}",
        kind=AGENT_REQUEST_FAILED,
    ),
)


def by_rules(rules: Sequence[FailureRule]) -> FailureClassifier:
    """A classifier of rules, the first that matches counts.

    A rule without an exit code is about commands that failed.
    """
    return partial(_classify, tuple(rules), _READ_CHARS)


def _classify(
    rules: Sequence[FailureRule], chars: int, run: CommandRun
) -> AgentError | None:
    text = f"{run.output[-chars:]}\n{run.errors[-chars:]}"
    for rule in rules:
        if rule.exit_code is None and run.exit_code in (0, None):
            continue
        if rule.matches(run, text):
            return AgentError(said(run), rule.kind, rule.status)
    return None


def default_failure(run: CommandRun) -> AgentError | None:
    """The failure of a command that did not end with exit code 0."""
    if run.exit_code in (0, None):
        return None
    if run.exit_code == 127 and NOT_FOUND_TEXT in run.errors[-_READ_CHARS:]:
        command = run.errors.rpartition(NOT_FOUND_TEXT)[2].strip()
        return AgentError(
            f"the sandbox has no command {command!r}; let the agent's install script "
            "bring it, or use an image that has it",
            AGENT_CONFIG_ERROR,
        )
    return _classify(_REQUESTS, _LAST_WORDS_CHARS, run) or AgentError(said(run))


def said(run: CommandRun) -> str:
    """How it ended, and the end of what it printed."""
    code = run.exit_code
    how = f"it ended with exit code {code}"
    if code is not None and code > 128:
        how = f"it was killed by signal {code - 128}"
    text = (run.errors.strip() or run.output.strip())[-SHOWN_CHARS:]
    return f"{how}: {text}" if text else how
