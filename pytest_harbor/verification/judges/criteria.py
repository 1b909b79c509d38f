"""What a judge grades by: criteria, their scales, and the aliases they are shown under.

Spec (task steps) 8.1 and 8.2. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from pytest_harbor.events import Json

RubricFormat: TypeAlias = Literal["rubric_binary", "rubric_partial"]
"""``rubric_binary``: each criterion is met or not. ``rubric_partial``: it has a share."""

_OWN_KEYS = ("id", "criterion", "weight", "outcomes", "pass_threshold")


@dataclass(frozen=True)
class Outcome:
    """One of the scores a criterion may get, in [0, 1], and what it stands for."""

    score: float
    label: str = ""


@dataclass(frozen=True)
class Scale:
    """A range of scores; the judge's number is brought to [0, 1] by it."""

    low: float
    high: float

    def normalised(self, value: float) -> float:
        """``value`` as a share of the range."""
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Criterion:
    """One line of a rubric.

    ``weight`` counts in a weighted average only; a negative one marks what must not be
    there, and score 1 then says that it is absent. ``outcomes``, ``scale`` and
    ``pass_threshold`` are for ``rubric_partial``. ``keys`` is everything the author wrote,
    which stays on the criterion's row.
    """

    id: str
    text: str
    weight: float = 1.0
    outcomes: tuple[Outcome, ...] = ()
    scale: Scale | None = None
    pass_threshold: float = 0.5
    keys: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> Criterion:
        """The criterion that an author wrote as an object, checked by the loader.

        ``outcomes`` is a list of scores, bare or with a label, or ``{min, max}``.
        """
        outcomes = keys.get("outcomes")
        scale = None
        listed: tuple[Outcome, ...] = ()
        if isinstance(outcomes, Mapping):
            scale = Scale(float(outcomes["min"]), float(outcomes["max"]))
        elif outcomes:
            listed = tuple(_outcome(outcome) for outcome in outcomes)
        return cls(
            id=keys["id"],
            text=keys["criterion"],
            weight=float(keys.get("weight", 1.0)),
            outcomes=listed,
            scale=scale,
            pass_threshold=float(keys.get("pass_threshold", 0.5)),
            keys=dict(keys),
        )

    @property
    def further_keys(self) -> dict[str, Json]:
        """What the author wrote beside the keys of the format; it is for the judge."""
        return {key: value for key, value in self.keys.items() if key not in _OWN_KEYS}


def aliases(criteria: Sequence[Criterion]) -> dict[str, Criterion]:
    """The names ``c1`` to ``cN`` under which a judge sees the criteria.

    An author's IDs may give away what is hoped for, and models copy short ones better.
    """
    return {f"c{number}": criterion for number, criterion in enumerate(criteria, 1)}


def _outcome(written: object) -> Outcome:
    if isinstance(written, Mapping):
        return Outcome(float(written["score"]), str(written.get("label", "")))
    return Outcome(float(written))  # type: ignore[arg-type]  # the loader checked it
