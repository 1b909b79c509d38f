"""What an agent's failure does to its episode (spec 17). Pure.

A rule is one line, ``status:429 = retry``, ``kind:agent_run_error = fail``,
``class:transport = retry`` or ``default = verify``. The first match in the order
status, kind, class, default decides, first among the user's rules, then among ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias, cast, get_args

from pytest_harbor.errors import (
    AGENT_AUTH_ERROR,
    AGENT_CONFIG_ERROR,
    AGENT_RATE_LIMITED,
    AGENT_REQUEST_FAILED,
    AGENT_RUN_ERROR,
    AGENT_SETUP_TIMEOUT,
    AGENT_TIMEOUT,
    AGENT_TOKEN_LIMIT,
    AGENT_TURN_LIMIT,
    SettingsError,
)

Action: TypeAlias = Literal["verify", "count_as_zero", "retry", "fail"]
FailureClass: TypeAlias = Literal[
    "authentication", "configuration", "limit", "rate_limit", "run", "transport"
]

ACTIONS: Final[tuple[str, ...]] = get_args(Action)
CLASSES: Final[tuple[str, ...]] = get_args(FailureClass)

DEFAULT_RULES: Final = (
    "class:authentication = fail",
    "class:configuration = fail",
    "class:transport = retry",
    "class:rate_limit = retry",
    "default = verify",
)
"""The actions that spec 17 recommends."""

_CLASS_OF_STATUS: Final[Mapping[int, FailureClass]] = {
    400: "configuration",
    401: "authentication",
    403: "authentication",
    404: "configuration",
    408: "transport",
    422: "configuration",
    429: "rate_limit",
}
_CLASS_OF_KIND: Final[Mapping[str, FailureClass]] = {
    AGENT_RUN_ERROR: "run",
    AGENT_TIMEOUT: "limit",
    # The agent never began: its time went to installing or reaching something.
    AGENT_SETUP_TIMEOUT: "transport",
    AGENT_AUTH_ERROR: "authentication",
    AGENT_CONFIG_ERROR: "configuration",
    AGENT_RATE_LIMITED: "rate_limit",
    AGENT_REQUEST_FAILED: "transport",
    AGENT_TOKEN_LIMIT: "limit",
    AGENT_TURN_LIMIT: "limit",
}


@dataclass(frozen=True)
class OutcomePolicy:
    """Parsed rules: what is on the left of ``=``, and its action."""

    rules: Mapping[str, Action]

    def action(self, kind: str, status: int | None = None) -> Action:
        """The action for a failure of this kind and HTTP status.

        Reaching a limit is an ordinary completion, so that no ``default`` touches
        it: only a rule that names it does.
        """
        group = failure_class(kind, status)
        names = [f"status:{status}", f"kind:{kind}", f"class:{group}"]
        if group != "limit":
            names.append("default")
        for rules in (self.rules, _DEFAULTS.rules):
            for name in names:
                if name in rules:
                    return rules[name]
        return "verify"


def failure_class(kind: str, status: int | None) -> FailureClass:
    """The class of a failure: by its HTTP status when there is one, else its kind."""
    if status is not None:
        if status in _CLASS_OF_STATUS:
            return _CLASS_OF_STATUS[status]
        if status >= 500:
            return "transport"
    return _CLASS_OF_KIND.get(kind, "run")


def parse_policy(lines: Iterable[str]) -> OutcomePolicy:
    """Parse rules; empty lines and ``#`` comments are skipped.

    Raises:
        SettingsError: names the line and what it should be.
    """
    rules: dict[str, Action] = {}
    for raw in lines:
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        name, equals, action = (part.strip() for part in line.partition("="))
        if not equals or not _is_name(name) or action not in ACTIONS:
            raise SettingsError(
                f"harbor_agent_outcome_policy: {line!r} is no rule; expected "
                "status:<number>, kind:<name>, class:<name> or default, then '=' and "
                f"one of {', '.join(ACTIONS)} (classes: {', '.join(CLASSES)})"
            )
        _refuse_typo(name, line)
        rules.setdefault(name, cast("Action", action))
    return OutcomePolicy(rules)


def _refuse_typo(name: str, line: str) -> None:
    """A kind may be an agent's own, but not one that is nearly ours: it would never match."""
    what, _, kind = name.partition(":")
    if what != "kind" or kind in _CLASS_OF_KIND:
        return
    near = get_close_matches(kind, _CLASS_OF_KIND, n=1, cutoff=0.9)
    if near:
        raise SettingsError(
            f"harbor_agent_outcome_policy: {line!r}: there is no such kind; did you mean "
            f"kind:{near[0]}?"
        )


def _is_name(name: str) -> bool:
    what, _, value = name.partition(":")
    if what == "status":
        return value.isascii() and value.isdecimal() and len(value) == 3
    if what == "class":
        return value in CLASSES
    if what == "kind":
        return bool(value)
    return name == "default"


_DEFAULTS: Final = parse_policy(DEFAULT_RULES)
