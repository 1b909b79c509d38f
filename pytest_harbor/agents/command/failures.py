"""What made a command fail, read from what it printed. Pure.

A declaration's own classifier is asked first; this is what is left when it does not know. CLIs
print a request's error in words of their own, so only what is unmistakable is taken for one,
and only of a command that failed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
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


_REQUESTS: Final = (
    FailureRule(
        r"(?i)\b429\b|\brate.?limit|too many requests|\boverloaded|quota exceeded",
        kind=AGENT_RATE_LIMITED,
        status=429,
    ),
    FailureRule(
        r"(?i)\b401\b|unauthorized|unauthenticated|(invalid|incorrect) api.?key"
        r"|authentication.?(error|failed)",
        kind=AGENT_AUTH_ERROR,
        status=401,
    ),
    FailureRule(
        r"(?i)ECONNREFUSED|ECONNRESET|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|getaddrinfo"
        r"|could not resolve|name resolution|connection (refused|reset|error)"
        r"|network is unreachable|fetch failed|\b50[0234]\b|service unavailable",
        kind=AGENT_REQUEST_FAILED,
    ),
)


def by_rules(rules: Sequence[FailureRule]) -> FailureClassifier:
    """A classifier of rules, the first that matches counts.

    A rule without an exit code is about commands that failed.
    """

    def classify(run: CommandRun) -> AgentError | None:
        text = _ends(run)
        for rule in rules:
            if rule.exit_code is None and run.exit_code in (0, None):
                continue
            if rule.matches(run, text):
                return AgentError(said(run), rule.kind, rule.status)
        return None

    return classify


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
    return by_rules(_REQUESTS)(run) or AgentError(said(run), AGENT_RUN_ERROR)


def said(run: CommandRun) -> str:
    """How it ended, and the end of what it printed."""
    code = run.exit_code
    how = f"it ended with exit code {code}"
    if code is not None and code > 128:
        how = f"it was killed by signal {code - 128}"
    text = (run.errors.strip() or run.output.strip())[-SHOWN_CHARS:]
    return f"{how}: {text}" if text else how


def _ends(run: CommandRun) -> str:
    return f"{run.output[-_READ_CHARS:]}\n{run.errors[-_READ_CHARS:]}"
