"""The start of what a server said, fit for a message. Pure."""

from __future__ import annotations

import re
from typing import Final

EXCERPT_CHARACTERS: Final = 500
_GAPS: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")


def excerpt(body: bytes | str, *, characters: int = EXCERPT_CHARACTERS) -> str:
    """One line of at most that many characters; control characters become spaces."""
    if isinstance(body, bytes):
        body = body[: 4 * characters + 4].decode("utf-8", "replace")
    line = _GAPS.sub(" ", body[: 4 * characters]).strip()
    return line if len(line) <= characters else f"{line[:characters]}..."
