"""What a server or agent said, made fit for messages and records. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

EXCERPT_CHARACTERS: Final = 500
MAX_LEVELS: Final = 100
"""Of nested JSON: what reads and writes records gives up at 255 levels, or at fewer."""
_GAPS: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")


def excerpt(body: bytes | str, *, characters: int = EXCERPT_CHARACTERS) -> str:
    """One line of at most that many characters; control characters become spaces."""
    if isinstance(body, bytes):
        body = body[: 4 * characters + 4].decode("utf-8", "replace")
    line = _GAPS.sub(" ", body[: 4 * characters]).strip()
    return line if len(line) <= characters else f"{line[:characters]}..."


def shortened(text: str, limit: int) -> str:
    """``text``, or its first and last parts with a line that says what is left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[-half:]}"


def is_too_deep(value: object, levels: int = MAX_LEVELS) -> bool:
    """Whether objects and lists are nested in more levels than records can hold."""
    inside = [value]
    for _ in range(levels + 1):
        inside = [child for item in inside for child in _children(item)]
        if not inside:
            return False
    return True


def _children(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()
