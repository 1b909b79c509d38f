"""Parts of a multimodal prompt, in either form of the A2A protocol (spec 7, 12)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Strict

from pytest_harbor.tasks.steps.values import refused

FORMS = (
    '{"kind": "text", "text": "..."}, {"kind": "data", "data": ...} or'
    ' {"kind": "file", "file": {"uri" or "bytes": "..."}}'
)
CONTENT_OF_1_0 = ("text", "data", "raw", "url")


def part_problem(part: Mapping[str, Any]) -> str | None:
    """Why ``part`` is no part of an A2A message, or ``None``.

    Both wire forms are parts: 0.3 (``{"kind": "text", "text": ...}``) and 1.0
    (``{"text": ...}``, ``{"url": ..., "mediaType": ...}``).
    """
    if "kind" in part:
        return _problem_of_0_3(part)
    held = [key for key in CONTENT_OF_1_0 if key in part]
    if len(held) != 1:
        return f"is no A2A part: write {FORMS}"
    return _content_problem(part, held[0], is_base64=held[0] == "raw")


def _problem_of_0_3(part: Mapping[str, Any]) -> str | None:
    kind = part["kind"]
    if kind in ("text", "data") and kind in part:
        return _content_problem(part, kind)
    file = part.get("file")
    if kind != "file" or not isinstance(file, Mapping):
        return f"is no A2A part: write {FORMS}"
    held = [key for key in ("uri", "bytes") if key in file]
    if len(held) != 1:
        return "a file part needs either uri or bytes"
    return _content_problem(file, held[0], is_base64=held[0] == "bytes")


def _content_problem(
    holder: Mapping[str, Any], key: str, *, is_base64: bool = False
) -> str | None:
    content = holder[key]
    if key == "data":
        return None  # any JSON
    if not isinstance(content, str):
        return f"{key} must be a string"
    if is_base64:
        try:
            base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            return f"{key} is not base64"
    return None


def _part(value: dict[str, Any]) -> dict[str, Any]:
    if problem := part_problem(value):
        raise refused(problem)
    return value


Parts: TypeAlias = Annotated[
    tuple[Annotated[dict[str, Any], AfterValidator(_part)], ...], Strict(False)
]
