"""The types of values in a step task's file: ids, times, versions (spec 1.3, 4 to 10).

Types are JSON's own and are not converted: a string where a number is due is an error.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, Strict
from pydantic_core import PydanticCustomError

from pytest_harbor.tasks.validation import refusal

SKILL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # spec 12
REFUSED = "refused"
MAX_NUMBER = 2**53  # beyond any machine, and exact in every JSON reader


class Record(BaseModel):
    """Base of every object: strict types, frozen, unknown keys left to the loader."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", use_attribute_docstrings=True
    )


def refused(text: str) -> PydanticCustomError:
    """The error of a value that the format refuses, saying ``text``."""
    return refusal(REFUSED, text)


def _id(value: str) -> str:
    if not value.strip():
        raise refused("must not be empty")
    return value


def _number(value: object) -> int | float:
    # An integer stays one: agents are told some of these as the file has them.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refused("must be a number")
    if not math.isfinite(value) or abs(value) > MAX_NUMBER:
        raise refused(f"must be a number from -{MAX_NUMBER} to {MAX_NUMBER}")
    return value


def _positive(value: object) -> int | float:
    number = _number(value)
    if number <= 0:
        raise refused(f"must be a positive number, not {number:g}")
    return number


def _count(value: int) -> int:
    if not 1 <= value <= MAX_NUMBER:
        raise refused(f"must be an integer of at least 1, not {value}")
    return value


def _whole(value: int) -> int:
    if not 0 <= value <= MAX_NUMBER:
        raise refused(f"must be an integer of at least 0, not {value}")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or "\0" in value:
        raise refused(f"must be an absolute path, not '{value}'")
    if ".." in value.split("/"):
        raise refused(f"'{value}' holds '..'; write the path without it")
    return value.rstrip("/") or "/"


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_usable = False
    if not is_usable:
        raise refused(f"must be an http or https URL, not '{value}'")
    return value


def _skill_name(value: str) -> str:
    if not SKILL_NAME.fullmatch(value):
        raise refused(
            f"'{value}' is no skill name: use letters, digits, '.', '_', '-', starting"
            " with a letter or digit, at most 128"
        )
    return value


def _output_format(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("type") != "json_schema" or not isinstance(value.get("schema"), dict):
        raise refused('must be {"type": "json_schema", "schema": {...}}')
    return value


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + text:
            raise refused(f"variable {name!r}: no '=', NUL or empty name")
    return value


Id: TypeAlias = Annotated[str, AfterValidator(_id)]
HttpUrl: TypeAlias = Annotated[str, AfterValidator(_http_url)]
SkillName: TypeAlias = Annotated[str, AfterValidator(_skill_name)]
Number: TypeAlias = Annotated[
    int | float, PlainValidator(_number, json_schema_input_type=float)
]
Amount: TypeAlias = Annotated[
    int | float, PlainValidator(_positive, json_schema_input_type=float)
]
Seconds: TypeAlias = Amount
Count: TypeAlias = Annotated[int, AfterValidator(_count)]
WholeNumber: TypeAlias = Annotated[int, AfterValidator(_whole)]
Version: TypeAlias = Annotated[int, AfterValidator(_count)]
SandboxPath: TypeAlias = Annotated[str, AfterValidator(_absolute)]
OutputFormat: TypeAlias = Annotated[dict[str, Any], AfterValidator(_output_format)]
Variables: TypeAlias = Annotated[dict[str, str], AfterValidator(_variables)]
# JSON lists arrive as lists; a tuple keeps a loaded task from being changed.
Strings: TypeAlias = Annotated[tuple[str, ...], Strict(False)]
Ids: TypeAlias = Annotated[tuple[Id, ...], Strict(False)]
