"""The text an agent is told (spec 1.1)."""

from __future__ import annotations

import re

CANARY = re.compile(r"\s*(<!--.*canary.*-->\s*$|#.*canary)", re.IGNORECASE)


def instruction_text(content: bytes) -> str:
    r"""The instruction without leading canary lines.

    Canary lines at the very top go, then the blank lines right after them; one
    further down stays. A byte-order mark goes and Windows line ends become ``\n``.

    Raises:
        UnicodeDecodeError: the content is not UTF-8.
    """
    text = content.decode("utf-8-sig")
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if "canary" not in text[:4096].lower():
        return text

    lines = text.splitlines(keepends=True)
    first = next(
        (number for number, line in enumerate(lines) if not CANARY.match(line)),
        len(lines),
    )
    if first == 0:
        return text
    while first < len(lines) and not lines[first].strip():
        first += 1
    return "".join(lines[first:])
