"""What a judge grades: the criteria of a ``rubrics_verifier`` (spec 8.1, 8.4)."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Strict, model_validator

from pytest_harbor.tasks.steps.values import Id, Number, Record, refused

ScoreAggregator: TypeAlias = Literal["all_pass", "any_pass", "weighted_average"]
RubricFormat: TypeAlias = Literal["rubric_binary", "rubric_partial"]

# Formats of the peer that grade screenshots and mistakes.
OTHER_FORMATS = (
    "trajectory_mistakes",
    "rubric_evidence",
    "rubric_evidence_with_mistakes",
)


class Outcome(Record):
    """One of a criterion's labelled scores."""

    model_config = ConfigDict(extra="allow")

    score: Number
    """What this outcome scores, from 0 to 1."""
    label: str | None = None
    """Its name for the judge."""


class ScaleEnd(Record):
    """One end of a scale in its long form, with what it means."""

    model_config = ConfigDict(extra="allow")

    value: Number
    """The raw score at this end."""


class Scale(Record):
    """A range of raw scores, which becomes 0 to 1."""

    model_config = ConfigDict(extra="allow")

    min: Number | ScaleEnd
    """The worst raw score."""
    max: Number | ScaleEnd
    """The best raw score."""

    @property
    def lowest(self) -> float:
        """The raw score that becomes 0."""
        return self.min.value if isinstance(self.min, ScaleEnd) else self.min

    @property
    def highest(self) -> float:
        """The raw score that becomes 1."""
        return self.max.value if isinstance(self.max, ScaleEnd) else self.max

    @model_validator(mode="after")
    def _ordered(self) -> Scale:
        if self.lowest >= self.highest:
            raise refused(
                f"min must be less than max, not {self.lowest:g} and {self.highest:g}"
            )
        return self


class Criterion(Record):
    """One criterion in plain language. Keys of your own go to the judge and the row."""

    model_config = ConfigDict(extra="allow")

    id: Id
    """Unique in the step; the row's id."""
    criterion: Id
    """What must hold."""
    weight: Number = 1
    """Share in a ``weighted_average``; negative for what must be absent."""
    outcomes: Scale | Annotated[tuple[Outcome, ...], Strict(False)] | None = None
    """``rubric_partial``: the scores to choose from; unset: any from 0 to 1."""
    pass_threshold: Number | None = None
    """``rubric_partial``: score from which the criterion is met, in the units of
    ``outcomes``; unset: 0.5, of a scale its middle."""
