"""What an item is worth, from its set-up, where the work runs, to its call, which may fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from pytest_harbor.collection.items import EpisodeFailed, TaskItem
from pytest_harbor.collection.private import skip_at_item
from pytest_harbor.results import junit

if TYPE_CHECKING:
    from pytest_harbor.verdicts import Verdict

DEFAULT_MIN_REWARD: Final = 1.0
_JUDGED: Final = pytest.StashKey["Judged"]()


@dataclass(frozen=True)
class Judged:
    """A verdict, and the text that explains it."""

    verdict: Verdict
    text: str


def settle(item: pytest.Item, judged: Judged) -> None:
    """End the set-up of an item by its verdict; the call of a collected one needs it, too.

    Raises:
        pytest.fail.Exception: there is nothing to judge: infrastructure, a refusal.
        pytest.skip.Exception: nothing that could be run, and that is no failure.
    """
    if judged.verdict.outcome == "skipped":
        raise skip_at_item(judged.verdict.message)
    if judged.verdict.outcome == "error":
        raise pytest.fail.Exception(junit.clean(judged.text), pytrace=False)
    if isinstance(item, TaskItem):
        item.stash[_JUDGED] = judged


def fail_by_verdict(item: pytest.Item) -> None:
    """The call of a collected item. Raises EpisodeFailed."""
    judged = item.stash[_JUDGED]
    del item.stash[_JUDGED]  # items live as long as the session, results need not
    if judged.verdict.outcome == "failed":
        raise EpisodeFailed(junit.clean(judged.text), pytrace=False)


def threshold(*wanted: float | None) -> float:
    """The first that is set, else 1.0 (design 4)."""
    return next((one for one in wanted if one is not None), DEFAULT_MIN_REWARD)


def tell_time_limit(error: BaseException, text: str, *, debug: bool) -> None:
    """Say what a time limit of the item met: where we were waiting says nothing.

    Does nothing for other errors, and where our frames were asked for.
    Raises pytest.fail.Exception.
    """
    if isinstance(error, pytest.fail.Exception) and not debug:
        raise pytest.fail.Exception(junit.clean(text), pytrace=False) from None


def interruption(error: BaseException) -> str:
    """What ended an item from outside: Ctrl-C, a time limit, a hook that raised."""
    if isinstance(error, KeyboardInterrupt | pytest.fail.Exception):
        return str(error)
    return f"{type(error).__name__}: {error}"
