"""Results as plain data, and back: what crosses processes and files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter

from pytest_harbor.episodes.result import EpisodeResult, TurnResult
from pytest_harbor.events import Json


def turn_to_plain(turn: TurnResult) -> dict[str, Json]:
    """A turn as what JSON can hold."""
    return cast("dict[str, Json]", _turns().dump_python(turn, mode="json"))


def result_to_plain(result: EpisodeResult) -> dict[str, Json]:
    """An episode as what JSON can hold; :func:`result_from_plain` reads it."""
    return cast("dict[str, Json]", _episodes().dump_python(result, mode="json"))


def result_from_plain(data: Mapping[str, Any]) -> EpisodeResult:
    """The episode that :func:`result_to_plain` wrote.

    Raises:
        pydantic.ValidationError: it is something else.
    """
    return _episodes().validate_python(data)


@cache
def _turns() -> TypeAdapter[TurnResult]:
    return TypeAdapter(TurnResult)


@cache
def _episodes() -> TypeAdapter[EpisodeResult]:
    return TypeAdapter(EpisodeResult)
