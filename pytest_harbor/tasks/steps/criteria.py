"""What a judge grades: the criteria of a ``rubrics_verifier`` (spec 8.1, 8.4)."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Strict,
    Tag,
    model_validator,
)

from pytest_harbor.tasks.steps.values import Id, Number, Record, refused

ScoreAggregator: TypeAlias = Literal["all_pass", "any_pass", "weighted_average"]

# Formats that grade screenshots and mistakes.
OTHER_FORMATS = (
    "trajectory_mistakes",
    "rubric_evidence",
    "rubric_evidence_with_mistakes",
)


def _supported(value: object) -> object:
    if value in OTHER_FORMATS:
        raise refused(f"'{value}' is not supported by pytest-harbor")
    return value


RubricFormat: TypeAlias = Annotated[
    Literal["rubric_binary", "rubric_partial"], BeforeValidator(_supported)
]


def _share(value: float) -> float:
    if not 0 <= value <= 1:
        raise refused(f"must be a number from 0 to 1, not {value:g}")
    return value


def _raw_score(value: object) -> object:
    return value.get("value") if isinstance(value, Mapping) else value


Share: TypeAlias = Annotated[Number, AfterValidator(_share)]
ScaleEnd: TypeAlias = Annotated[Number, BeforeValidator(_raw_score)]


class Outcome(Record):
    """One of a criterion's scores; a number is short for ``{"score": <number>}``."""

    model_config = ConfigDict(extra="allow")

    score: Share
    """What this outcome scores, from 0 to 1."""
    label: str | None = None
    """Its name for the judge."""

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: object) -> object:
        return {"score": value} if isinstance(value, (int, float)) else value


class Scale(Record):
    """A range of raw scores, which becomes 0 to 1."""

    model_config = ConfigDict(extra="allow")

    min: ScaleEnd
    """The worst raw score; ``{"value": <number>}`` is read, too."""
    max: ScaleEnd
    """The best raw score."""

    @property
    def lowest(self) -> float:
        """The raw score that becomes 0."""
        return self.min

    @property
    def highest(self) -> float:
        """The raw score that becomes 1."""
        return self.max

    @model_validator(mode="after")
    def _ordered(self) -> Scale:
        if self.min >= self.max:
            raise refused(f"min must be less than max, not {self.min} and {self.max}")
        return self


def _form(value: object) -> str:
    return "scale" if isinstance(value, Mapping | Scale) else "scores"


Outcomes: TypeAlias = Annotated[
    Annotated[Scale, Tag("scale")]
    | Annotated[tuple[Outcome, ...], Strict(False), Tag("scores")],
    Discriminator(_form),
]


class Criterion(Record):
    """One criterion in plain language. Keys of your own go to the judge and the row."""

    model_config = ConfigDict(extra="allow")

    id: Id
    """Unique in the step; the row's id."""
    criterion: Id
    """What must hold."""
    weight: Number = 1
    """Share in a ``weighted_average``; negative for what must be absent."""
    outcomes: Outcomes | None = None
    """``rubric_partial``: the scores to choose from; unset: any from 0 to 1."""
    pass_threshold: Share = 0.5
    """``rubric_partial``: share from 0 to 1 from which the criterion is met, whatever the
    scale is."""


def meant_key(key: str, criterion: Criterion) -> str | None:
    """The field that a key of the author's own may be a misspelling of."""
    absent = Criterion.model_fields.keys() - criterion.model_fields_set
    near = get_close_matches(key, sorted(absent), n=1, cutoff=0.75)
    return near[0] if near else None
