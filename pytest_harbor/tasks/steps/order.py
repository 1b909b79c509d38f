"""Which step waits for which: ``depends_on`` and what follows from it (spec 1.4). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from pytest_harbor.tasks.validation import JSON_WORDS, shown


class Dependencies(NamedTuple):
    """The ``depends_on`` of one step, resolved."""

    ids: tuple[str, ...]
    """In the order of the file, each once."""
    problems: tuple[tuple[str, str], ...] = ()
    """Where in the step (``depends_on[1]``), and what is wrong there."""


def dependencies(
    depends_on: Any, index: int, positions: Mapping[str, int], ids: Sequence[str | None]
) -> Dependencies:
    """What the step at ``index`` waits for.

    ``ids`` are those of all steps, ``positions`` the index of the first step of an id.
    Absent or null means every earlier step.
    """
    if depends_on is None:
        earlier = (name for name in ids[:index] if name is not None)
        return Dependencies(tuple(dict.fromkeys(earlier)))
    if not isinstance(depends_on, list):
        what = f"must be a list of step ids, not {shown(depends_on, JSON_WORDS)}"
        return Dependencies((), (("depends_on", what),))

    found: list[str] = []
    problems = []
    for number, entry in enumerate(depends_on):
        name = entry.get("task_step_id") if isinstance(entry, dict) else entry
        if not isinstance(name, str):
            what = (
                'must be a step id or {"task_step_id": "<id>"},'
                f" not {shown(entry, JSON_WORDS)}"
            )
            problems.append((f"depends_on[{number}]", what))
        elif problem := _order_problem(name, index, positions):
            problems.append((f"depends_on[{number}]", problem))
        else:
            found.append(name)
    return Dependencies(tuple(dict.fromkeys(found)), tuple(problems))


def _order_problem(name: str, index: int, positions: Mapping[str, int]) -> str | None:
    position = positions.get(name)
    if position is None:
        return f"'{name}' is no step of this task{did_you_mean(name, positions)}"
    if position == index:
        return f"'{name}' is this step itself"
    if position > index:
        return f"'{name}' is step {position + 1}, which comes later; move it before"
    return None


def did_you_mean(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """The closest known name as a question, or nothing."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""


def ancestors(
    steps: Iterable[tuple[str | None, Sequence[str]]],
) -> list[frozenset[str]]:
    """Per step the ids of all that have ended before it starts.

    ``steps`` are ids with what each waits for, in file order; of an id that is there
    twice the first one counts.
    """
    known: dict[str, frozenset[str]] = {}
    found = []
    for name, parents in steps:
        above = (known.get(parent, frozenset()) for parent in parents)
        found.append(frozenset(parents).union(*above))
        if name is not None:
            known.setdefault(name, found[-1])
    return found
